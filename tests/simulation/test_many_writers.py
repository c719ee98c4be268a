"""Several writers of one log, on a store that loses power and answers: no commit is lost, none comes back.

One seed decides who does what, and when the power is cut. What a log comes to is computed here from its entries
in the plainest way, and compared with what the log says, whose readers begin at the newest summary.
"""

import hashlib
import random
from collections.abc import Iterator

import pytest

from assay.base.errors import AssayError, FencedError
from assay.records.commit import Commit, CommitQuarantined, FileDigest, LogEntry, RunFinished
from assay.records.cursor import Cursor
from assay.records.log_summary import LogSummary
from assay.store import commit_log
from assay.store.commit_log import RECEIPTS_NAME, CommitLog, checkpoint_folder, first_problem
from assay.store.faulty import FlakyStore
from assay.store.objects import ObjectStore, open_store
from assay.training.checkpoint.retention import RetentionConfig, folders_to_retire
from power_cut_store import PowerCut, PowerCutStore

NUM_ACTIONS = 80
RETENTION = RetentionConfig(keep_last=2, keep_best=1)


@pytest.fixture(autouse=True)
def many_summaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "SUMMARY_EVERY", 3)


class LosesResponses(FlakyStore):
    """Now and then says of what it has put that it was taken: the answer to the first try got lost."""

    def __init__(self, inner: ObjectStore, rng: random.Random) -> None:
        super().__init__(inner)
        self._rng = rng

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        return super().put_if_absent(key, data) and self._rng.random() > 0.1


class SummaryFirst(CommitLog):
    """Wrong on purpose: the summary is there before its last entry."""

    def _put(self, entry: LogEntry) -> bool:
        ahead = CommitLog(open_store("memory:"), attempt=self.attempt)
        ahead._summary, ahead._num_summarized = self._summary, self._num_summarized
        ahead._put(entry)
        ahead.store = self.store
        ahead._summarize()
        return super()._put(entry)


class Trusting(CommitLog):
    """Wrong on purpose: believes the newest summary, whatever the entries say."""

    def _newest_summary(self) -> LogSummary:
        keys = sorted(item.key for item in self.store.list(commit_log.SUMMARY_PREFIX))
        return LogSummary.from_json(self.store.get(keys[-1]), source="") if keys else LogSummary()


class TrustingSummaryFirst(Trusting, SummaryFirst):
    """Wrong on purpose: both."""


class Late(CommitLog):
    """Wrong on purpose: the summary is that of the entries before the last one."""

    def _summarize(self) -> None:
        whole = self._summary
        self._summary = whole.model_copy(update={"commits": whole.commits[:-1]})
        super()._summarize()
        self._summary = whole


class SweepsReceipts(CommitLog):
    """Wrong on purpose: what is no commit that can be resumed from was never one."""

    def summary(self) -> LogSummary:
        return super().summary().model_copy(update={"last_steps": {}})


def play(seed: int, log_type: type[CommitLog] = CommitLog) -> None:
    """Have writers come, go on, sleep and die; raises `AssertionError` where the log is not what it must be."""
    rng, inner = random.Random(seed), open_store("memory:")
    writers: list[CommitLog] = []
    heard: list[LogEntry] = []
    for _ in range(NUM_ACTIONS):
        if not writers or rng.random() < 0.1:
            store = PowerCutStore(LosesResponses(inner, rng), writes_left=rng.randrange(1, 80), rng=rng)
            writers.append(log_type(store))
        log = rng.choice(writers[-3:])
        try:
            heard += act(log, rng)
        except (PowerCut, FencedError) as error:
            writers.remove(log)
            is_fenced = CommitLog(inner).summary().attempt > log.attempt
            assert isinstance(error, PowerCut) or is_fenced, error
    check(inner, heard, log_type)


def act(log: CommitLog, rng: random.Random) -> Iterator[LogEntry]:
    """One thing that a writer does; gives the entries of which it knows that they are durable."""
    if not log.attempt:
        yield first_entry(log)
        return
    commits = log.commits()
    match rng.choice(["commit"] * 8 + ["quarantine", "finish"]):
        case "commit":
            yield (commit := commit_of(log, commits, rng))
            log.sweep_retired(commit)
        case "quarantine" if commits:
            bad = commits[-1]
            entry = CommitQuarantined(attempt=log.attempt, folder=bad.folder, step=bad.step, reason="torn")
            log.append(entry)
            yield entry
            yield first_entry(log)
        case "finish" if commits:
            last = commits[-1]
            end = RunFinished(attempt=log.attempt, step=last.step, weights_digest=last.weights_digest)
            log.append(end)
            yield end
            yield first_entry(log)


def first_entry(log: CommitLog) -> LogEntry:
    """As a supervisor begins an attempt."""
    log.begin_attempt(world_size=1, now_s=0.0)
    began = log._known[-1].entry
    log.last_intact_commit()
    log.sweep_abandoned()
    return began


def commit_of(log: CommitLog, before: list[Commit], rng: random.Random) -> Commit:
    """As a saver makes it durable."""
    created = log.summary().last_steps.get(log.attempt, 0)  # its steps rise, whatever others quarantine
    step = max(created, *(item.step for item in before), 0) + rng.randrange(1, 4)
    folder, weights = checkpoint_folder(step, log.attempt), str(step).encode()
    log.store.put(f"{folder}/weights", weights)
    log.store.put(f"{folder}/{RECEIPTS_NAME}", b"receipts")
    commit = Commit(
        attempt=log.attempt,
        world_size=1,
        step=step,
        cursor=Cursor(),
        committed_s=0.0,
        folder=folder,
        files=(FileDigest(path="weights", num_bytes=len(weights), sha256=hashlib.sha256(weights).hexdigest()),),
        weights_digest=str(step),
        receipts_from_step=0,
        rows_trained=1,
        metric=rng.random(),
    )
    commit = commit.model_copy(update={"retires": folders_to_retire(before, commit, RETENTION)})
    log.append(commit)
    return commit


def check(inner: ObjectStore, heard: list[LogEntry], log_type: type[CommitLog]) -> None:
    """Whether the log holds all that was heard, says what its entries say, and sweeps nothing else away."""
    entries = CommitLog(inner).entries()
    assert [entries.count(entry) for entry in heard] == [1] * len(heard), "lost, or there twice"
    gone = {entry.folder for entry in entries if isinstance(entry, CommitQuarantined)}
    created = [entry for entry in entries if isinstance(entry, Commit)]
    gone |= {folder for commit in created for folder in commit.retires}
    alive = [commit for commit in created if commit.folder not in gone]
    log = log_type(inner)
    assert log.commits() == alive, "lost, or come back"
    assert (log.finished() is not None) == isinstance(entries[-1], RunFinished)
    assert list(CommitLog(inner).problems_of_summaries()) == []
    log.begin_attempt(world_size=1, now_s=0.0)
    log.sweep_abandoned()
    log.sweep()
    quarantined = {entry.folder for entry in entries if isinstance(entry, CommitQuarantined)}
    weights = {commit.folder for commit in alive} | quarantined
    left = {item.key for item in inner.list("checkpoints/")}
    assert {f"{folder}/weights" for folder in weights} == {key for key in left if key.endswith("weights")}
    receipts = {f"{commit.folder}/{RECEIPTS_NAME}" for commit in created}
    assert receipts == {key for key in left if key.endswith(RECEIPTS_NAME)}
    assert all(first_problem(inner, commit) is None for commit in alive)


@pytest.mark.parametrize("seed", range(10))
def test_no_commit_is_lost_or_comes_back_whoever_writes_and_dies(seed: int) -> None:
    play(seed)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(100, 10_100, 500))
def test_no_commit_is_lost_or_comes_back_in_ten_thousand_schedules(first: int) -> None:
    for seed in range(first, first + 500):
        play(seed)


@pytest.mark.parametrize("wrong", [SummaryFirst, TrustingSummaryFirst, Late, SweepsReceipts])
def test_the_simulation_finds_a_log_that_is_wrong(wrong: type[CommitLog]) -> None:
    def is_found(seed: int) -> bool:
        try:
            play(seed, wrong)
        except (AssertionError, AssayError):
            return True
        return False

    assert any(is_found(seed) for seed in range(40))
