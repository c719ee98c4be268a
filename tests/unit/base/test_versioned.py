"""What earlier versions wrote is read; what later ones wrote ends in a sentence."""

from typing import ClassVar

import pytest

from assay.base.code_version import code_version
from assay.base.errors import DataError
from assay.records.record import Record


def _with_seconds(tree):
    return {"held_s": tree["held_ms"] / 1000}


def _with_a_rank(tree):
    return {**tree, "rank": 0}


class Inner(Record):
    kind: ClassVar[str] = "inner"
    upgrades: ClassVar = (_with_seconds, _with_a_rank)

    held_s: float
    rank: int


class Outer(Record):
    kind: ClassVar[str] = "outer"

    inner: tuple[Inner, ...]
    note: str = ""


@pytest.mark.parametrize(
    ("stored", "held_s", "rank"),
    [
        ('{"kind":"inner","version":1,"held_ms":1500}', 1.5, 0),
        ('{"kind":"inner","version":2,"held_s":2.5}', 2.5, 0),
        ('{"kind":"inner","version":3,"held_s":2.5,"rank":7}', 2.5, 7),
    ],
)
def test_every_earlier_version_is_upgraded_one_step_at_a_time(stored, held_s, rank):
    assert Inner.from_json(stored, source="x") == Inner(held_s=held_s, rank=rank)


def test_a_nested_record_is_upgraded_from_the_version_that_it_names_and_else_from_the_first():
    stored = '{"kind":"outer","version":1,"inner":[{"held_ms":1500},{"version":3,"held_s":2.5,"rank":7}]}'
    assert Outer.from_json(stored, source="x").inner == (Inner(held_s=1.5, rank=0), Inner(held_s=2.5, rank=7))


def test_what_is_written_today_is_read_today():
    record = Outer(inner=(Inner(held_s=1.0, rank=2),), note="x")
    assert Outer.from_json(record.to_json(), source="x") == record


def test_the_first_version_of_a_nested_record_is_written_without_one():
    assert '"version"' not in str(Outer(inner=(), note="x").model_dump())


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ('{"kind":"outer","version":2,"inner":[]}', "it has version 2, and this assay reads up to version 1"),
        ('{"kind":"outer","version":1,"inner":[],"colour":"red"}', "key 'colour' is unknown here"),
        (
            '{"kind":"outer","version":1,"inner":[{"version":3,"held_s":1,"rank":0,"host":"a"}]}',
            "key 'inner.0.host' is unknown here",
        ),
        (
            '{"kind":"outer","version":1,"inner":[{"version":4,"held_s":1}]}',
            "key 'inner.0': it has version 4, and this assay reads up to version 3",
        ),
        ('{"kind":"outer","version":1}', "key 'inner' is missing"),
        ('{"kind":"outer","version":1,"inner":[],"note":3}', "key 'note': expected a text"),
    ],
)
def test_what_can_not_be_read_is_one_sentence_with_file_kind_key_and_cure(stored, message):
    with pytest.raises(DataError) as raised:
        Outer.from_json(stored, source="runs/a/outer.json")
    sentence = str(raised.value)
    assert sentence.startswith("runs/a/outer.json: a 'outer' record, version ")
    assert message in sentence
    assert f"this is assay {code_version()}: use the assay that wrote it" in sentence
    assert "pydantic" not in sentence and "\n" not in sentence


def test_the_assay_that_wrote_a_record_is_named_where_the_record_says_it():
    with pytest.raises(DataError, match=r"use assay 7\.1\+gabc, or a newer one"):
        Outer.from_json('{"kind":"outer","version":1,"code_version":"7.1+gabc"}', source="x")
