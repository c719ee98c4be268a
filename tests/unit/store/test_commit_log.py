"""The log of commits: who may append to it, which commits can be trusted, and what is swept away."""

import hashlib
import io
import json
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from assay.base.digest import sha256_of_json
from assay.base.errors import DamagedDataError, DataError, FencedError, StoreError
from assay.records.commit import AttemptBegan, Commit, CommitQuarantined, FileDigest, RunFinished
from assay.records.cursor import Cursor
from assay.store import commit_log
from assay.store.commit_log import (
    CommitLog,
    checkpoint_folder,
    first_problem,
    parse_checkpoint_folder,
)
from assay.store.faulty import FlakyStore
from assay.store.objects import open_store
from clocks import ManualClock
from failing_store import FailingStore


@pytest.fixture
def store():
    return open_store("memory:")


def started_log(store, now_s: float = 1.0) -> CommitLog:
    log = CommitLog(store)
    log.begin_attempt(world_size=1, now_s=now_s)
    return log


def digest_of(path: str, data: bytes) -> FileDigest:
    return FileDigest(path=path, num_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def committed(log: CommitLog, step: int, **fields: object) -> Commit:
    """A commit of one file, made durable as a saver does it."""
    folder = checkpoint_folder(step, log.attempt)
    weights = f"weights of {step}".encode()
    log.store.put(f"{folder}/weights", weights)
    log.store.put(f"{folder}/receipts.npz", b"receipts")
    commit = Commit(
        attempt=log.attempt,
        world_size=1,
        step=step,
        cursor=Cursor(),
        committed_s=0.0,
        folder=folder,
        files=(digest_of("weights", weights),),
        weights_digest=str(step),
        receipts_from_step=0,
        rows_trained=1,
        **fields,
    )
    log.append(commit)
    return commit


def steps(log: CommitLog) -> list[int]:
    return [commit.step for commit in log.commits()]


def folders(store) -> set[str]:
    return {item.key for item in store.list("checkpoints/")}


def test_a_run_lies_where_every_version_looks_for_it(store) -> None:
    log = started_log(store)
    commit = committed(log, 7)
    assert {item.key for item in store.list("")} == {
        "log/00000000.json",
        "log/00000001.json",
        "checkpoints/00000007-0001/weights",
        "checkpoints/00000007-0001/receipts.npz",
    }
    assert parse_checkpoint_folder(commit.folder) == (7, 1)


def test_what_can_not_be_made_again_lies_where_every_version_looks_for_it(store) -> None:
    """And goes with the step that a commit holds, or the one before."""
    assert commit_log.PENDING_PREFIXES == ("judged/", "made/")
    retained = [f"{folder}/{name}" for folder in ("judged", "made") for name in ("00000008/1.json", "notes/1.json")]
    gone = [f"{folder}/0000000{step}/1.json" for folder in ("judged", "made") for step in (0, 7)]
    for key in (*retained, *gone):
        store.put(key, b"said")
    CommitLog(store).sweep_pending(7)
    assert sorted(item.key for item in store.list("")) == sorted(retained)


def test_a_log_counts_what_others_appended_and_gives_out_copies(store) -> None:
    log, reader = started_log(store), CommitLog(store)
    committed(log, 1)
    assert [entry.type for entry in reader.entries()] == ["attempt", "commit"]
    reader.entries().clear()
    committed(log, 2)
    assert reader.entries() == log.entries() and len(reader.entries()) == 3


class BackToFront(FlakyStore):
    """Lists in the order that a store may."""

    def list(self, prefix, after="", limit=None):
        return iter(sorted(super().list(prefix, after, limit), reverse=True))


def test_entries_are_in_the_order_of_their_numbers_however_the_store_lists_them(store) -> None:
    log = started_log(store)
    for step in (1, 2, 3):
        committed(log, step)
    assert CommitLog(BackToFront(store)).entries() == log.entries()


def test_a_hole_in_the_log_is_named(store) -> None:
    log = started_log(store)
    committed(log, 1)
    committed(log, 2)
    store.delete("log/00000001.json")
    with pytest.raises(DataError, match=r"entry 00000001 is missing, log/00000002.json is there"):
        CommitLog(store).entries()


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"kind": "commit"}', b'{"type": "unheard of"}', b"3"])
def test_an_entry_that_was_changed_is_named(store, text) -> None:
    started_log(store)
    store.put("log/00000000.json", text)
    with pytest.raises(DamagedDataError, match=r"log/00000000.json: not an entry .* restore it"):
        CommitLog(store).entries()


def test_a_log_that_began_no_attempt_is_of_attempt_0_and_appends_nothing_of_others(store) -> None:
    assert CommitLog(store).attempt == 0 and CommitLog(store, attempt=3).attempt == 3
    with pytest.raises(AssertionError, match="attempt 0 appends an entry of 1"):
        CommitLog(store).append(RunFinished(attempt=1, step=5, weights_digest="d"))


def test_an_attempt_goes_on_in_another_process_that_was_told_its_number(store) -> None:
    started_log(store)
    log = CommitLog(store, attempt=1)
    log.append(RunFinished(attempt=1, step=5, weights_digest="d"))
    assert log.finished() == CommitLog(store).finished() == log.entries()[-1]
    assert [entry.type for entry in log.entries()] == ["attempt", "finished"]


def test_attempts_are_counted_and_each_says_when_and_on_how_many_ranks_it_began(store) -> None:
    log = CommitLog(store)
    assert [log.begin_attempt(world_size=2, now_s=5.0), log.begin_attempt(world_size=4, now_s=6.0)] == [1, 2]
    assert log.attempt == 2
    assert [(entry.attempt, entry.world_size, entry.began_s) for entry in CommitLog(store).entries()] == [
        (1, 2, 5.0),
        (2, 4, 6.0),
    ]


def test_two_that_begin_at_once_get_numbers_of_their_own(store) -> None:
    """The loser of the race sees whose entry stands there, and takes the next number."""

    class OvertakenTwice(FlakyStore):
        times = 0

        def put_if_absent(self, key, data) -> bool:
            self.times += 1
            if self.times <= 2:
                started_log(store, now_s=1.0)
            return super().put_if_absent(key, data)

    late = started_log(OvertakenTwice(store), now_s=1.0)
    assert late.attempt == 3
    assert [entry.attempt for entry in CommitLog(store).entries()] == [1, 2, 3]


def test_an_entry_costs_one_write(store) -> None:
    keys: list[str] = []

    class Counting(FlakyStore):
        def put_if_absent(self, key, data) -> bool:
            keys.append(key)
            return super().put_if_absent(key, data)

    log = started_log(Counting(store))
    committed(log, 1)
    log.append(RunFinished(attempt=1, step=1, weights_digest="d"))
    assert keys == [f"log/0000000{number}.json" for number in range(3)]


def test_a_run_is_finished_when_its_last_entry_says_so(store) -> None:
    assert CommitLog(store).finished() is None
    log = started_log(store)
    for step in (1, 2):
        committed(log, step)
        assert log.finished() is None
    end = RunFinished(attempt=1, step=2, weights_digest="2")
    log.append(end)
    assert log.finished() == end == CommitLog(store).finished()
    log.begin_attempt(world_size=1, now_s=2.0)
    assert log.finished() is None


def test_a_retired_or_quarantined_commit_is_resumed_from_no_more(store) -> None:
    log = started_log(store)
    first, second = committed(log, 1), committed(log, 2)
    committed(log, 3, retires=(first.folder,))
    log.append(CommitQuarantined(attempt=1, folder=second.folder, step=2, reason="torn"))
    assert steps(log) == steps(CommitLog(store)) == [3]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda store, key: store.delete(key), "{key} is missing"),
        (lambda store, key: store.put(key, b"half"), "{key} has 4 bytes, the commit says 12"),
        (lambda store, key: store.put(key, b"weights of 9"), "{key} has sha256 {is_}…, the commit says {was}…"),
    ],
)
def test_a_damaged_file_is_named_and_the_commit_before_it_is_used(store, damage, problem) -> None:
    log = started_log(store)
    good, bad = committed(log, 1), committed(log, 2)
    assert first_problem(store, bad) is None and log.last_intact_commit() == bad
    damage(store, key := f"{bad.folder}/weights")
    is_, was = (hashlib.sha256(text).hexdigest()[:12] for text in (b"weights of 9", b"weights of 2"))
    expected = problem.format(key=key, is_=is_, was=was)
    assert first_problem(store, bad) == expected
    assert log.last_intact_commit() == good
    assert log.entries()[-1] == CommitQuarantined(attempt=1, folder=bad.folder, step=2, reason=expected)
    assert steps(log) == [1]
    store.delete(f"{good.folder}/weights")
    assert log.last_intact_commit() is None and steps(log) == []


def test_the_first_damaged_of_several_files_is_named(store) -> None:
    log = started_log(store)
    commit = committed(log, 1)
    store.put(f"{commit.folder}/more", b"more")
    commit = commit.model_copy(update={"files": (*commit.files, digest_of("more", b"more"), *commit.files)})
    assert first_problem(store, commit) is None
    store.delete(f"{commit.folder}/more")
    assert first_problem(store, commit) == f"{commit.folder}/more is missing"


def test_a_large_file_is_digested_whole_and_block_by_block(store) -> None:
    data = bytes(range(256)) * (9 << 12)  # longer than one block
    sizes: list[int] = []

    class Watched(FlakyStore):
        @contextmanager
        def open_reader(self, key):
            class Reader(io.BytesIO):
                def read(self, size=-1, /):
                    sizes.append(size)
                    return super().read(size)

            yield Reader(self._inner.get(key))

    log = started_log(store)
    commit = committed(log, 1).model_copy(update={"files": (digest_of("large", data),)})
    store.put(f"{commit.folder}/large", data)
    assert first_problem(Watched(store), commit) is None
    assert 1 << 20 <= min(sizes) == max(sizes) <= 64 << 20  # memory stays bounded, and requests stay few
    store.put(f"{commit.folder}/large", data[:-1] + b"?")
    assert first_problem(Watched(store), commit) is not None


def test_no_commit_behind_the_last_verified_one_is_trusted_after_a_failed_check(store) -> None:
    log = started_log(store)
    for step in (1, 2, 3):
        committed(log, step, is_verified=True)
    doubtful = [committed(log, step) for step in (4, 5)]
    log.quarantine_unverified("a device is wrong", up_to=1)
    assert steps(log) == [1, 2, 3]
    assert log.entries()[-2:] == [
        CommitQuarantined(attempt=1, folder=commit.folder, step=commit.step, reason="a device is wrong")
        for commit in reversed(doubtful)
    ]
    log.quarantine_unverified("again", up_to=1)
    assert len(log.entries()) == 8


def test_where_no_commit_is_verified_none_is_trusted(store) -> None:
    log = started_log(store)
    committed(log, 1), committed(log, 2)
    log.quarantine_unverified("a device is wrong", up_to=1)
    assert steps(log) == []


def test_a_fork_falls_back_to_the_commit_that_it_inherited(store) -> None:
    committed(CommitLog(store), 3)
    log = started_log(store)
    committed(log, 4), committed(log, 5)
    log.quarantine_unverified("a device is wrong", up_to=1)
    assert steps(log) == [3]


def test_commits_of_attempts_after_the_failed_check_are_trusted(store) -> None:
    log = started_log(store)
    committed(log, 1)
    log.begin_attempt(world_size=1, now_s=0.0)
    committed(log, 2)
    log.quarantine_unverified("a device was wrong in attempt 1", up_to=1)
    assert steps(log) == [1, 2]


def test_a_sweep_keeps_what_may_be_needed_and_nothing_else(store) -> None:
    log = started_log(store)
    retired, torn = committed(log, 1), committed(log, 2)
    store.put(f"{checkpoint_folder(9, 1)}/weights", b"of an attempt that died before its commit")
    store.put(f"{checkpoint_folder(9, 1)}/receipts.npz", b"likewise")
    log.append(CommitQuarantined(attempt=1, folder=torn.folder, step=2, reason="torn"))
    log.begin_attempt(world_size=1, now_s=2.0)
    retained = committed(log, 3, retires=(retired.folder,))
    making = {f"{checkpoint_folder(4, attempt)}/weights" for attempt in (2, 3)}
    for key in making:
        store.put(key, b"in the making")
    log.sweep()
    assert folders(store) == making | {
        f"{retired.folder}/receipts.npz",
        *(f"{commit.folder}/{name}" for commit in (torn, retained) for name in ("weights", "receipts.npz")),
    }
    assert log.last_intact_commit() == retained


def test_a_strangers_folder_is_passed_over_and_what_lies_behind_it_is_swept(store) -> None:
    """The store lists in any order, so the stranger's comes between two of ours."""
    log = started_log(store)
    expected = ("checkpoints/backup/weights", "checkpoints/00000001-mine/weights")
    ours = [f"{checkpoint_folder(step, 1)}/weights" for step in (0, 9)]
    for key in (*expected, *ours):
        store.put(key, b"weights")
    log.begin_attempt(world_size=1, now_s=2.0)
    log.sweep_abandoned()
    assert folders(store) == set(expected)


def test_what_an_attempt_left_before_its_first_commit_is_swept_whole(store) -> None:
    log = started_log(store)
    for name in ("weights", "receipts.npz"):
        store.put(f"{checkpoint_folder(0, 1)}/{name}", b"torn")
    log.begin_attempt(world_size=1, now_s=2.0)
    log.sweep_abandoned()
    assert folders(store) == set()


def test_an_attempt_looks_at_what_lies_from_its_first_step_on(store) -> None:
    """What is older was swept by the attempts before it."""

    class RecordingStore(FlakyStore):
        def sweep_unfinished(self, is_dead, is_swept) -> None:
            self.is_swept = is_swept

    events = RecordingStore(store)
    log = started_log(events)
    for step in (1, 2, 3):
        committed(log, step)
    own = folders(store)
    strays = [f"{checkpoint_folder(step, 0)}/weights" for step in range(5)]
    output = [f"judged/0000000{step}/1.json" for step in range(5)]
    for key in (*strays, *output):
        store.put(key, b"of nobody who lives")
    log.sweep_abandoned()
    assert folders(store) - own == set(strays[:3])
    assert [item.key for item in store.list("judged/")] == output[4:]
    passed_over = [events.is_swept(folder) for folder in (*map(checkpoint_folder, (2, 3), (1, 1)), "log", "made/2")]
    assert passed_over == [True, False, False, False]


def test_receipts_and_journal_of_the_last_commit_of_an_attempt_outlive_its_weights(store) -> None:
    log = started_log(store)
    last = committed(log, 1)
    store.put(f"{last.folder}/journal.parquet", b"rollouts")
    log.begin_attempt(world_size=1, now_s=2.0)
    newer = committed(log, 2, retires=(last.folder,))
    log.sweep()
    assert folders(store) == {
        *(f"{last.folder}/{name}" for name in ("receipts.npz", "journal.parquet")),
        *(f"{newer.folder}/{name}" for name in ("receipts.npz", "weights")),
    }


def test_a_log_that_was_not_read_knows_of_no_commit_and_appends_behind_what_is_there(store) -> None:
    first = committed(started_log(store), 1)
    log = CommitLog(store, attempt=1)
    assert log.known_commits() == []
    second = committed(log, 2)
    assert CommitLog(store).commits() == log.known_commits() == [first, second]


def test_a_sweep_deletes_the_weights_that_this_very_attempt_has_retired(store) -> None:
    log = started_log(store)
    retired, torn = committed(log, 1), committed(log, 2)
    log.append(CommitQuarantined(attempt=1, folder=torn.folder, step=2, reason="torn"))
    log.sweep_retired(committed(log, 3, retires=(retired.folder, torn.folder)))
    after_full_sweep = folders(store)
    assert f"{retired.folder}/weights" not in after_full_sweep
    log.sweep()
    assert folders(store) == after_full_sweep


def test_a_commit_costs_as_many_calls_after_many_commits_as_after_few() -> None:
    clock, inner = ManualClock(), open_store("memory:")
    counting = FailingStore(inner, {}, clock)
    log, costs = started_log(counting), []
    for step in range(1, 4 * commit_log.SUMMARY_EVERY):
        before = counting.num_calls
        log.commits()
        retires = () if step < 3 else (checkpoint_folder(step - 2, 1),)
        log.sweep_retired(committed(log, step, retires=retires))
        costs.append(counting.num_calls - before)
    few, many = min(costs[3:]), max(costs[3:])
    assert many - few == 1 and costs[3:].count(many) == 4  # a summary, now and then


def test_who_was_replaced_can_neither_append_nor_take_the_run_back(store) -> None:
    zombie, successor = started_log(store, now_s=1.0), started_log(store, now_s=2.0)
    entries = successor.entries()
    with pytest.raises(FencedError, match="attempt 1 was replaced by attempt 2"):
        zombie.append(RunFinished(attempt=1, step=5, weights_digest="d"))
    with pytest.raises(FencedError, match="attempt 1 was replaced by attempt 2"):
        zombie.begin_attempt(world_size=1, now_s=3.0)
    assert successor.entries() == entries


def test_who_was_replaced_and_has_read_of_it_can_not_append_behind_its_successor(store) -> None:
    zombie, successor = started_log(store, now_s=1.0), started_log(store, now_s=2.0)
    entries = zombie.entries()
    with pytest.raises(FencedError, match="attempt 1 was replaced by attempt 2"):
        zombie.append(RunFinished(attempt=1, step=5, weights_digest="d"))
    assert successor.entries() == entries


def test_an_append_whose_answer_was_lost_is_made_once(store) -> None:
    class LosesResponses(FlakyStore):
        def put_if_absent(self, key, data) -> bool:
            return super().put_if_absent(key, data) and not key.endswith("00000001.json")

    log = started_log(LosesResponses(store), now_s=1.0)
    log.append(RunFinished(attempt=1, step=5, weights_digest="d"))
    assert len(log.entries()) == 2


def test_an_attempt_whose_own_beginning_was_not_heard_of_is_not_fenced_by_it(store) -> None:
    class LosesResponses(FlakyStore):
        def put_if_absent(self, key, data) -> bool:
            is_heard = super().put_if_absent(key, data)
            return is_heard and not key.endswith("00000002.json")

    started_log(store)
    log = started_log(LosesResponses(store), now_s=1.0)
    assert log.begin_attempt(world_size=1, now_s=2.0) == 4
    assert [entry.attempt for entry in log.entries()] == [1, 2, 3, 4]


def test_who_loses_the_race_for_the_next_attempt_to_another_is_fenced(store, monkeypatch) -> None:
    log, other = started_log(store), CommitLog(store)
    put = store.put_if_absent

    def put_after_another(key: str, data: bytes) -> bool:
        monkeypatch.setattr(store, "put_if_absent", put)
        other.begin_attempt(world_size=1, now_s=2.0)
        return put(key, data)

    monkeypatch.setattr(store, "put_if_absent", put_after_another)
    with pytest.raises(FencedError):
        log.begin_attempt(world_size=1, now_s=3.0)
    assert other.attempt == 2 and [entry.attempt for entry in other.entries()] == [1, 2]


def test_every_flipped_bit_of_an_entry_is_found(store) -> None:
    log = started_log(store)
    committed(log, 7)
    for key in ("log/00000000.json", "log/00000001.json"):
        whole = store.get(key)
        for bit in range(8 * len(whole)):
            changed = bytearray(whole)
            changed[bit // 8] ^= 1 << bit % 8
            store.put(key, bytes(changed))
            with pytest.raises((DamagedDataError, DataError), match=key):
                CommitLog(store).entries()
        store.put(key, whole)
    assert CommitLog(store).entries() == log.entries()


def test_entries_that_changed_places_are_found(store) -> None:
    log = started_log(store)
    committed(log, 7)
    committed(log, 8)
    first, second = store.get("log/00000001.json"), store.get("log/00000002.json")
    store.put("log/00000001.json", second)
    store.put("log/00000002.json", first)
    with pytest.raises(DamagedDataError, match=r"log/00000001\.json: it has not the digest"):
        CommitLog(store).entries()


def test_an_entry_that_was_written_with_a_digest_is_read_for_ever(store) -> None:
    """The digest is of `{"entry":...,"key":"log/00000000.json"}`, computed here by hand: what is on disks."""
    text = '{"attempt":1,"began_s":2.0,"kind":"attempt_began","previous_sha256":"","type":"attempt","version":1,'
    text += '"world_size":4}'
    whole = f'{{"entry":{text},"key":"log/00000000.json"}}'
    digest = hashlib.sha256(whole.encode()).hexdigest()
    store.put("log/00000000.json", f'{text[:-1]},"entry_sha256":"{digest}"}}'.encode())
    assert CommitLog(store).entries() == [AttemptBegan(attempt=1, world_size=4, began_s=2.0)]


def test_an_entry_without_a_digest_is_refused(store) -> None:
    started_log(store)
    tree = json.loads(store.get("log/00000000.json"))
    del tree["entry_sha256"]
    store.put("log/00000000.json", json.dumps(tree).encode())
    with pytest.raises(DamagedDataError, match=r"log/00000000\.json: it has not the digest"):
        CommitLog(store).entries()


def test_half_written_files_of_fenced_attempts_are_swept_and_those_of_this_one_stay(tmp_path: Path) -> None:
    log = started_log(open_store(str(tmp_path)))
    log.begin_attempt(world_size=1, now_s=2.0)
    halves = [tmp_path / checkpoint_folder(4, attempt) / ".unfinished-weights-1-1" for attempt in (1, 2)]
    for half in halves:
        half.parent.mkdir(parents=True)
        half.write_bytes(b"half")
    log.sweep_abandoned()
    assert [half.exists() for half in halves] == [False, True]


def test_half_written_files_of_this_attempt_are_swept_after_an_hour(store) -> None:
    class RecordingStore(FlakyStore):
        def sweep_unfinished(self, is_dead, is_swept) -> None:
            ages = (0.0, 3600.0, 3600.5)
            self.dead = [age_s for age_s in ages if is_dead(checkpoint_folder(4, 1), age_s)]

    events = RecordingStore(store)
    started_log(events).sweep_abandoned()
    assert events.dead == [3600.5]


class Counted(FlakyStore):
    """Counts the calls, and the objects in listings."""

    cost = 0

    def list(self, prefix, after="", limit=None):
        found = list(super().list(prefix, after, limit))
        self.cost += 1 + len(found)
        return iter(found)

    def get(self, key):
        self.cost += 1
        return super().get(key)

    def exists(self, key):
        self.cost += 1
        return super().exists(key)


def test_an_attempt_begins_at_the_same_cost_after_many_commits_as_after_few(store) -> None:
    log, costs = started_log(store), []
    for step in range(1, 5 * commit_log.SUMMARY_EVERY):
        retires = () if step < 3 else (checkpoint_folder(step - 2, 1),)
        log.sweep_retired(committed(log, step, retires=retires))
        if step % commit_log.SUMMARY_EVERY == 2:
            counted = Counted(store)
            late = CommitLog(counted)
            late.last_intact_commit(), late.sweep_abandoned()
            costs.append(counted.cost - len(list(store.list(commit_log.SUMMARY_PREFIX))))
    assert len(costs) == 5 and len(set(costs[1:])) == 1, costs


def many(store, num_commits: int, now_s: float = 1.0) -> CommitLog:
    """A log that is long enough for a summary."""
    log = started_log(store, now_s)
    for step in range(1, num_commits + 1):
        committed(log, step, retires=() if step < 3 else (checkpoint_folder(step - 2, 1),))
    return log


@pytest.fixture
def long_log(store) -> CommitLog:
    log = many(store, commit_log.SUMMARY_EVERY + 3)
    (summary,) = store.list("log-summaries/")
    assert summary.key == SUMMARY
    return log


def test_a_log_that_nobody_read_is_summed_up_at_the_same_entries(store) -> None:
    log = CommitLog(store)
    for step in range(33):
        committed(log, step)
    assert [item.key for item in store.list("log-summaries/")] == [SUMMARY]


SUMMARY = "log-summaries/00000032.json"
LAST_OF_SUMMARY = "log/00000031.json"


def test_who_goes_on_reads_the_entries_behind_the_summary_only(store, long_log) -> None:
    class Read(FlakyStore):
        keys: ClassVar[list[str]] = []

        def get(self, key):
            self.keys.append(key)
            return super().get(key)

    log = CommitLog(Read(store))
    assert log.commits() == long_log.commits() and log.begin_attempt(world_size=1, now_s=2.0) == 2
    assert Read.keys == [SUMMARY, *(f"log/{number:08d}.json" for number in range(31, 36))]
    assert log.entries() == CommitLog(store).entries() and len(log.entries()) == 37


def test_who_goes_on_writes_the_next_summary_when_it_is_due(store, long_log) -> None:
    log = CommitLog(store)
    log.begin_attempt(world_size=1, now_s=2.0)
    for step in range(36, 63):
        assert [item.key for item in store.list("log-summaries/")] == [SUMMARY]
        committed(log, step)
    assert [item.key for item in store.list("log-summaries/")] == [SUMMARY, "log-summaries/00000064.json"]


def test_no_flipped_bit_of_a_summary_is_believed(store, long_log) -> None:
    whole = store.get(SUMMARY)
    for location in range(0, len(whole), 37):
        store.put(SUMMARY, whole[:location] + bytes([whole[location] ^ 1 << location % 8]) + whole[location + 1 :])
        assert CommitLog(store).commits() == long_log.commits()
        (problem,) = long_log.problems_of_summaries()
        assert problem.startswith(f"{SUMMARY} is not what the first 32 entries come to")


def test_a_summary_of_other_entries_is_passed_over_and_named(store, long_log) -> None:
    other = open_store("memory:")
    many(other, commit_log.SUMMARY_EVERY, now_s=2.0)
    store.put(SUMMARY, other.get(SUMMARY))
    store.put("log-summaries/00000034.json", store.get(SUMMARY))
    assert CommitLog(store).commits() == long_log.commits()
    assert [problem[:27] for problem in long_log.problems_of_summaries()] == [
        SUMMARY,
        "log-summaries/00000034.json",
    ]


def test_summaries_are_judged_by_who_has_read_nothing_yet_and_named_in_their_order(store, long_log) -> None:
    assert list(CommitLog(store).problems_of_summaries()) == []
    keys = [f"log-summaries/000000{number}.json" for number in (41, 50, 77)]
    for key in keys:
        store.put(key, b"?")
    (*problems,) = CommitLog(BackToFront(store)).problems_of_summaries()
    assert [problem.split(" tells of entries that are not there: ") for problem in problems] == [
        [key, "the log has 36"] for key in keys
    ]


def test_a_summary_whose_entries_were_deleted_is_no_log(store, long_log) -> None:
    for number in range(31, 36):
        store.delete(f"log/{number:08d}.json")
    with pytest.raises(DataError, match=rf"{LAST_OF_SUMMARY} is missing, and {SUMMARY} tells of it"):
        CommitLog(store).begin_attempt(world_size=1, now_s=2.0)
    store.delete(SUMMARY)
    assert CommitLog(store).commits()[-1].step == 30


def test_behind_a_damaged_summary_the_one_before_it_is_read(store) -> None:
    many(store, 2 * commit_log.SUMMARY_EVERY)
    first, second = sorted(item.key for item in store.list("log-summaries/"))
    store.put(second, store.get(second)[:-7])
    store.put("log/00000003.json", b"nobody looks here")
    assert CommitLog(store).commits()[-1].step == 2 * commit_log.SUMMARY_EVERY
    store.delete(first)
    with pytest.raises(DamagedDataError, match=r"log/00000003\.json"):
        CommitLog(store).commits()


def test_a_hole_is_named_again_to_who_asks_again(store) -> None:
    log = many(store, 5)
    store.delete("log/00000003.json")
    log = CommitLog(store)
    for _ in range(2):
        with pytest.raises(DataError, match="entry 00000003 is missing"):
            log.commits()


@pytest.mark.parametrize("number", [2, 32, 33])
def test_an_entry_that_lost_its_link_is_found(store, long_log, number) -> None:
    if number < 32:
        store.delete(SUMMARY)
    key = f"log/{number:08d}.json"
    tree = json.loads(store.get(key))
    del tree["entry_sha256"], tree["previous_sha256"]
    store.put(key, json.dumps({**tree, "entry_sha256": sha256_of_json({"entry": tree, "key": key})}).encode())
    with pytest.raises(DamagedDataError, match=rf"log/{number:08d}\.json: it does not follow"):
        CommitLog(store).commits()


def test_an_entry_that_was_deleted_from_under_a_summary_is_missed_by_who_reads_all(store, long_log) -> None:
    store.delete("log/00000007.json")
    assert CommitLog(store).commits() == long_log.commits()
    with pytest.raises(DataError, match="entry 00000007 is missing"):
        CommitLog(store).entries()


def test_an_entry_that_somebody_put_in_the_place_of_another_is_found(store) -> None:
    """Its own digest is right; it is the next one that does not follow it."""
    many(store, 3)
    other = open_store("memory:")
    log = started_log(other)
    committed(log, 1), committed(log, 2, metric=0.5)
    store.put("log/00000002.json", other.get("log/00000002.json"))
    with pytest.raises(DamagedDataError, match=r"log/00000003\.json: it does not follow the entry before it"):
        CommitLog(store).commits()


def test_a_summary_that_can_not_be_written_costs_no_commit(store) -> None:
    class NoSummaries(FlakyStore):
        is_broken = True

        def put_if_absent(self, key, data) -> bool:
            if key.startswith("log-summaries/") and self.is_broken:
                raise StoreError("full")
            return super().put_if_absent(key, data)

    broken = NoSummaries(store)
    log = many(broken, 40)
    assert list(store.list("log-summaries/")) == []
    broken.is_broken = False
    committed(log, 41)
    assert [item.key for item in store.list("log-summaries/")] == ["log-summaries/00000042.json"]
