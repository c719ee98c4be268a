"""A record in a file carries a digest of its own text."""

import pytest

from assay.base.errors import DataError
from assay.records.notice import Notice

NOTICE = Notice(notice="hang", run_id="r", attempt=1, at_s=0.5, text="ränk 0 \\ud83d \x00 \n")


def test_a_flipped_bit_anywhere_in_a_sealed_record_is_found() -> None:
    sealed = NOTICE.to_sealed_json().encode()
    assert Notice.from_json(sealed, source="n") == NOTICE
    for bit in range(8 * len(sealed)):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DataError, match=r"^n: "):
            Notice.from_json(bytes(changed), source="n")


def test_a_record_that_is_nested_too_deeply_is_damaged() -> None:
    with pytest.raises(DataError, match=r"n: not JSON .lists or objects are nested more than 100 deep"):
        Notice.from_json("[" * 100_000, source="n")


def test_a_record_that_is_not_sealed_is_read_too() -> None:
    assert Notice.from_json(NOTICE.to_json(), source="n") == NOTICE
    assert NOTICE.digest() == Notice.from_json(NOTICE.to_sealed_json(), source="n").digest()
