import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.base.errors import DamagedDataError, DataError
from assay.records.uploaded_file import FILE_ENTRIES, FileCreated, FileEntry, FileRemoved
from assay.store.logs.entry_log import EntryLog, LogKind
from assay.store.objects import ObjectStore, open_store
from clocks import HandClock
from failing_store import TROUBLES, FailingStore, patient

KIND: LogKind[FileEntry, list[FileEntry]] = LogKind(
    "file's log", FILE_ENTRIES, lambda state, entry: [*(state or []), entry]
)


def log_in(store: ObjectStore) -> EntryLog[FileEntry, list[FileEntry]]:
    return EntryLog(store, "file/a/log", KIND)


def removed(at_s: float) -> FileRemoved:
    return FileRemoved(at_s=at_s)


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
    inner, clock = open_store("memory:"), HandClock()
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
        file_id="file-1", project="p", at_s=1.0, filename="f", purpose="evals", num_bytes=1, sha256="0"
    )
    log.append(lambda _: created)
    store.put("file/a/log/notes.txt", b"mine")
    assert log_in(store).state() == [created]
