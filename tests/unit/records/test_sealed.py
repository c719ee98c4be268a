"""A record in a file carries a digest of its own text."""

import pytest

from assay.base.errors import DataError
from assay.records.incident import Incident

INCIDENT = Incident(incident="hang", run_id="r", attempt=1, at_s=0.5, text="ränk 0 \\ud83d \x00 \n")


def test_a_flipped_bit_anywhere_in_a_sealed_record_is_found() -> None:
    sealed = INCIDENT.to_sealed_json().encode()
    assert Incident.from_json(sealed, source="n") == INCIDENT
    for bit in range(8 * len(sealed)):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DataError, match=r"^n: "):
            Incident.from_json(bytes(changed), source="n")


def test_a_record_that_is_nested_too_deeply_is_damaged() -> None:
    with pytest.raises(DataError, match=r"n: not JSON .lists or objects are nested more than 100 deep"):
        Incident.from_json("[" * 100_000, source="n")


def test_a_record_that_is_not_sealed_is_read_too() -> None:
    assert Incident.from_json(INCIDENT.to_json(), source="n") == INCIDENT
    assert INCIDENT.digest() == Incident.from_json(INCIDENT.to_sealed_json(), source="n").digest()
