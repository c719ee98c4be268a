"""A run retires its checkpoints while others come to rely on them: whoever is told yes has the bytes, for good.

Each side runs whole before every operation of the other, and the power is cut at every write of either.
"""

import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from assay.records.commit import Commit, RunFinished
from assay.records.cursor import Cursor
from assay.serving.retention import CheckpointRetention
from assay.store.commit_log import CommitLog, checkpoint_folder, first_problem
from assay.store.logs.retained_checkpoints import RetainedCheckpoints
from assay.store.objects import ObjectStore, open_store
from assay.training.checkpoint.retention import RetentionConfig, commit_and_retire
from clocks import ManualClock
from power_cut_store import PowerCut, PowerCutStore
from unit.store.test_commit_log import digest_of

RUN, STEP = "r", 5
LAST_ONE = RetentionConfig(keep_last=1, keep_best=0)
CLOCK = ManualClock()


class Run:
    """A run with one commit, which the next one makes superfluous."""

    retention_class = RetainedCheckpoints

    def __init__(self) -> None:
        self.inner = open_store("memory:")
        RetainedCheckpoints(self.inner, CLOCK).open_to_others()
        self.commits(self.inner, STEP)

    def commits(self, store: ObjectStore, step: int, *, is_last: bool = False) -> None:
        """One attempt that makes one commit."""
        log = CommitLog(store)
        log.begin_attempt(world_size=1, now_s=0.0)
        folder, weights = checkpoint_folder(step, log.attempt), f"weights {step}".encode()
        store.put(f"{folder}/weights", weights)
        commit = Commit(
            attempt=log.attempt, world_size=1, step=step, cursor=Cursor(), committed_s=0.0, folder=folder,
            files=(digest_of("weights", weights),), weights_digest=str(step),
            receipts_from_step=0, rows_trained=1,
        )  # fmt: skip
        commit_and_retire(log, commit, LAST_ONE, retire=self.retention_class(store, CLOCK).retire)
        if is_last:
            log.append(RunFinished(attempt=log.attempt, step=step, weights_digest=str(step)))

    def claim(self, who: str, store: ObjectStore | None = None) -> bool:
        return CheckpointRetention(lambda _: store or self.inner, CLOCK).retain(RUN, STEP, who)

    def has_it(self) -> bool:
        """Whether the checkpoint can be resumed from, and its bytes are those that were committed."""
        found = [commit for commit in CommitLog(self.inner).commits() if commit.step == STEP]
        return bool(found) and first_problem(self.inner, found[0]) is None


class Peeking(RetainedCheckpoints):
    """Known to be bad: looks whether somebody relies on a checkpoint, and retires it without a word."""

    def retire(self, folder: str) -> bool:
        return not any(True for _ in self._store.list(f"kept/{folder}/"))


class PeekingRun(Run):
    retention_class = Peeking


class InterruptedStore:
    """Something else happens before one operation."""

    def __init__(self, inner: ObjectStore, at: int, happens: Callable[[], None]) -> None:
        self._inner = inner
        self._left = at
        self._happens = happens

    def __getattr__(self, name: str):
        found = getattr(self._inner, name)
        if not callable(found):
            return found
        self._left -= 1
        if self._left == -1:
            self._happens()
        return found

    @property
    def was_early(self) -> bool:
        """Whether so many operations were made."""
        return self._left < 0


def race_once(run_class: type[Run], at: int, *, first: str, is_last: bool) -> tuple[bool, bool, bool]:
    """What somebody is told, what is so in the end, and whether the one that was `first` came so far."""
    run, responses = run_class(), list[bool]()

    def commits(store: ObjectStore) -> None:
        run.commits(store, STEP + 1, is_last=is_last)

    def claims(store: ObjectStore) -> None:
        responses.append(run.claim("x", store))

    sides = {"commits": (commits, claims), "claims": (claims, commits)}
    own, expected = sides[first]
    store = InterruptedStore(run.inner, at, lambda: expected(run.inner))
    own(store)  # type: ignore[arg-type]
    if not store.was_early:
        expected(run.inner)
    return responses[0], run.has_it(), store.was_early


def race_at_all_points(run_class: type[Run], *, first: str, is_last: bool) -> list[tuple[bool, bool]]:
    found = []
    for at in range(200):
        response, exists, was_early = race_once(run_class, at, first=first, is_last=is_last)
        found.append((response, exists))
        if not was_early:
            return found
    raise AssertionError("no end")


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("first", ["commits", "claims"])
def test_whoever_is_told_yes_has_the_checkpoint_whatever_comes_between(first: str, is_last: bool) -> None:
    found = race_at_all_points(Run, first=first, is_last=is_last)
    assert len(found) > 5
    assert all(response == exists for response, exists in found), found
    assert {response for response, _ in found} == {True, False}  # there is a race to be lost


def test_a_run_that_only_looks_is_caught() -> None:
    found = race_at_all_points(PeekingRun, first="commits", is_last=False)
    assert (True, False) in found


def cut_power(cut: int, *, of_run: bool) -> tuple[bool, bool]:
    """The power is cut at a write of the run, or of whoever asks; both try again. Was it told, and is it so?"""
    run, rng = Run(), random.Random(cut)
    store = PowerCutStore(run.inner, writes_left=cut, rng=rng)
    with suppress(PowerCut):
        if of_run:
            run.commits(store, STEP + 1)
        else:
            run.claim("x", store)
    if not of_run:
        run.commits(run.inner, STEP + 1)
        return run.claim("x"), run.has_it()
    response = run.claim("x")
    run.commits(run.inner, STEP + 2)
    return response, run.has_it()


@pytest.mark.parametrize("of_run", [False, True])
def test_the_power_is_cut_at_every_write(of_run: bool) -> None:
    found = [cut_power(cut, of_run=of_run) for cut in range(12 if of_run else 4)]
    assert all(exists for response, exists in found if response), found
    assert {response for response, _ in found} == {True, False}


def test_a_checkpoint_goes_once_nobody_relies_on_it_any_more() -> None:
    run = Run()
    assert run.claim("x") and run.claim("y") and run.claim("x")
    keeper = CheckpointRetention(lambda _: run.inner, CLOCK)
    for step, who in ((STEP + 1, "x"), (STEP + 2, "y")):
        run.commits(run.inner, step)
        assert run.has_it()
        keeper.release(RUN, STEP, who)
    assert run.has_it()
    run.commits(run.inner, STEP + 3)
    assert not run.has_it() and not run.claim("z")


def test_a_run_that_nobody_else_asks_writes_nothing_about_it() -> None:
    run = Run()
    run.inner.delete("kept/may-be")
    run.commits(run.inner, STEP + 1)
    assert [*run.inner.list("kept/")] == [] and not run.has_it()
