import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.base.digest import sha256_of_bytes
from assay.base.errors import DamagedDataError, DataError
from assay.records.fine_tuning_job import JOB_ENTRIES, JobCreated
from assay.records.uploaded_file import FILE_ENTRIES, FileCreated, FileEntry, FileRemoved
from assay.store.faulty import FlakyStore
from assay.store.logs.entry import entry_text, read_entry
from assay.store.logs.entry_log import EntryLog, LogKind, brief_text
from assay.store.objects import ObjectStore, open_store
from clocks import ManualClock
from failing_store import TROUBLES, FailingStore, patient

KIND: LogKind[FileEntry, list[FileEntry]] = LogKind(
    "file's log", FILE_ENTRIES, lambda state, entry: [*(state or []), entry]
)


def log_in(store: ObjectStore) -> EntryLog[FileEntry, list[FileEntry]]:
    return EntryLog(store, "file/a/log", KIND)


def removed(at_s: float) -> FileRemoved:
    return FileRemoved(at_s=at_s)


@settings(deadline=None)
@given(writers=st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_writers_that_take_turns_in_any_order_lose_and_double_nothing(writers: list[int]) -> None:
    store = open_store("memory:")
    logs = [log_in(store) for _ in range(3)]
    for number, writer in enumerate(writers):
        logs[writer].append(lambda _, number=number: removed(number))
    assert [[entry.at_s for entry in log.state()] for log in logs] == [[*range(len(writers))]] * 3
    assert log_in(store).state() == logs[0].state()


def test_who_loses_the_number_decides_again_on_what_the_other_put() -> None:
    store = open_store("memory:")
    first, second = log_in(store), log_in(store)
    seen = []

    def decide(state: list[FileEntry] | None) -> FileEntry | None:
        seen.append(len(state or []))
        if len(seen) == 1:
            second.append(lambda _: removed(1.0))
        return removed(2.0)

    assert [entry.at_s for entry in first.append(decide)] == [1.0, 2.0]
    assert seen == [0, 1]


def test_nothing_is_put_where_nothing_is_decided_or_the_decision_raises() -> None:
    store = open_store("memory:")
    log = log_in(store)
    assert log.append(lambda _: None) is None
    with pytest.raises(RuntimeError):
        log.append(lambda _: (_ for _ in ()).throw(RuntimeError()))
    assert [*store.list("")] == []


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("call", range(4))
def test_an_entry_whose_answer_was_lost_is_there_once(trouble, call) -> None:
    inner, clock = open_store("memory:"), ManualClock()
    log = log_in(patient(FailingStore(inner, {call: trouble}, clock), clock))
    log.append(lambda state: None if state else removed(1.0))
    log.append(lambda state: None if len(state) > 1 else removed(2.0))
    assert [entry.at_s for entry in log_in(inner).state()] == [1.0, 2.0]


def test_an_entry_that_was_changed_replaced_or_taken_out_is_found(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    log = log_in(store)
    for number in range(4):
        log.append(lambda _, number=number: removed(number))
    keys = sorted(item.key for item in store.list(""))
    whole = store.get(keys[2])

    tree = {**json.loads(whole), "at_s": 9.0}
    store.put(keys[2], json.dumps(tree).encode())
    with pytest.raises(DamagedDataError, match=r"00000002.json: it has not the digest"):
        log_in(store).state()
    store.put(keys[2], store.get(keys[1]))
    with pytest.raises(DamagedDataError, match="not the digest"):  # its place is part of it
        log_in(store).state()
    store.delete(keys[2])
    with pytest.raises(DataError, match=r"00000002.json is missing: this file's log has a hole"):
        log_in(store).state()
    store.put(keys[2], whole)
    assert len(log_in(store).state()) == 4


def test_what_is_no_entry_is_passed_over() -> None:
    store = open_store("memory:")
    log = log_in(store)
    created = FileCreated(
        file_id="file-1",
        project="p",
        at_s=1.0,
        filename="f",
        purpose="evals",
        num_bytes=1,
        sha256="0",
        content="file-1",
    )
    log.append(lambda _: created)
    store.put("file/a/log/notes.txt", b"mine")
    assert log_in(store).state() == [created]


PIECE = '"entry_sha256":"' + "0" * 64 + '",'
UNUSUAL_TEXTS = st.text(max_size=8) | st.sampled_from([PIECE, "entry_sha256", '"', "\\", "\u2028", "ä"])
UNUSUAL_TREES = st.recursive(
    UNUSUAL_TEXTS | st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False) | st.none() | st.booleans(),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(UNUSUAL_TEXTS, inside, max_size=3),
    max_leaves=4,
)


@settings(max_examples=25, deadline=None)
@given(base=st.dictionaries(UNUSUAL_TEXTS, UNUSUAL_TREES, max_size=3), indent=st.sampled_from([None, 1]))
def test_an_entry_is_read_as_it_was_put_and_however_it_is_spelled(base: dict, indent: int | None) -> None:
    created = JobCreated(
        job_id="j", project="p", at_s=1.0, model="m", base=base, method="dpo", hyperparameters={},
        training_file="f", seed=1, request_sha256="",
    )  # fmt: skip
    data, known = entry_text(created, "log/1", "before")
    assert read_entry(data, "log/1", JOB_ENTRIES, of="log") == known
    reformatted = json.dumps(json.loads(data), indent=indent).encode()
    assert read_entry(reformatted, "log/1", JOB_ENTRIES, of="log") == known
    for changed_data, key in ((data, "log/2"), (data.replace(b'"at_s":1.0', b'"at_s":2.0', 1), "log/1")):
        with pytest.raises(DamagedDataError, match="not the digest"):
            read_entry(changed_data, key, JOB_ENTRIES, of="log")


class Counting(FlakyStore):
    """Counts what is read."""

    num_read = 0

    def get(self, key):
        self.num_read += 1
        return super().get(key)


LIGHT = KIND._replace(light=lambda entry: entry.model_copy(update={"at_s": float(int(entry.at_s))}))


def test_a_log_that_is_over_is_read_as_one_object_and_its_entries_are_whole() -> None:
    store = Counting(open_store("memory:"))
    log = EntryLog(store, "file/a/log", LIGHT)
    for number in range(5):
        log.append(lambda _, number=number: removed(number + 0.5))
    assert [entry.at_s for entry in log.state()] == [0, 1, 2, 3, 4]
    log.write_brief()
    log.append(lambda _: removed(5.5))  # all the same
    store.num_read = 0
    late = EntryLog(store, "file/a/log", LIGHT)
    assert late.state() == log.state() and store.num_read == 2
    assert [late.entry(number).at_s for number in range(6)] == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]
    late.append(lambda _: removed(6.5))
    assert [entry.at_s for entry in log_in(store).state()] == [number + 0.5 for number in range(7)]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data.replace(b"removed", b"revoked"),
    ],
)
def test_a_brief_that_is_damaged_or_of_another_assay_is_passed_over(damage) -> None:
    store = open_store("memory:")
    log = EntryLog(store, "file/a/log", LIGHT)
    for number in range(3):
        log.append(lambda _, number=number: removed(number))
    log.write_brief()
    data = damage(store.get("file/a/log/brief"))
    store.put("file/a/log/brief", data)
    late = EntryLog(store, "file/a/log", LIGHT)
    assert late.state() == log.state()
    late.append(lambda _: removed(3.0))
    assert len(log.state()) == 4


def test_a_brief_of_types_that_are_unknown_is_passed_over() -> None:
    store = open_store("memory:")
    log = EntryLog(store, "file/a/log", LIGHT)
    log.append(lambda _: removed(1.0))
    text = brief_text([removed(9.0)], "x").partition(b"\n")[2].replace(b'"removed"', b'"later"')
    store.put("file/a/log/brief", sha256_of_bytes(text).encode() + b"\n" + text)
    assert [entry.at_s for entry in EntryLog(store, "file/a/log", LIGHT).state()] == [1.0]
