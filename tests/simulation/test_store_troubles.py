"""The real supervisor, trainer, saver and commit log on a store that fails, hangs, slows down or lies.

At every call, one at a time and in random pairs: the run ends with what each row was learned in when nothing
happens, or with exit code 75 and everything intact, so that the next start ends so. Time is simulated.
"""

import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import IO

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

from assay.base.clock import SystemClock
from assay.base.errors import StoreAwayError, StoreError
from assay.data.loader.batch import StepShare
from assay.distributed.ranks import Ranks
from assay.elastic.processor import processor_here
from assay.elastic.supervisor import RestartPolicy, Supervisor
from assay.elastic.task import AttemptEnd, Orders
from assay.records.commit import CommitQuarantined, RunFinished
from assay.records.cursor import Cursor
from assay.records.failure import Failure, FailureKind
from assay.records.node_environment import NodeEnvironment
from assay.records.rank_device import RankDevice
from assay.records.run import Run
from assay.records.suspect import WrongArithmeticError
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.heartbeat import Beat
from assay.store.objects import ObjectStore, RetryingStore, open_store
from assay.store.retry_policy import HURRIED_S
from assay.training.checkpoint.parts import training_parts
from assay.training.checkpoint.retention import RetentionConfig
from assay.training.checkpoint.saver import Saver
from assay.training.checkpoint.store_files import cause_of
from assay.training.recipe import recipe_sha256
from assay.training.trainer.step import StepTotals
from assay.training.trainer.trainer import TrainingPosition
from clocks import ManualClock
from failing_store import OUTAGE_S, TROUBLES, FailingStore, Response, Trouble, messages, patient
from simulation.test_power_cuts import (
    Memory,
    RememberingStepper,
    is_right,
    trainer_of,
)
from simulation.test_power_cuts import many_summaries as many_summaries
from simulation.test_power_cuts import ranks as ranks
from tiny_recipe import tiny_recipe
from variants import slow, soaked

RETENTION = RetentionConfig(keep_last=2, keep_best=1)


class UnusedRandom(random.Random):
    """Nobody asks to stop."""

    def random(self) -> float:
        return 0.5


class RanksHere:
    """One rank, in this thread: it trains when it is asked how it ended."""

    pids = ()

    def __init__(self, store: ObjectStore, orders: Orders, ranks: Ranks) -> None:
        self._store = store
        self._orders = orders
        self._ranks = ranks

    def hosts(self) -> list[str]:
        return ["host-0"]

    def devices(self) -> list[RankDevice]:
        return [RankDevice("cpu")]

    def wait_for_news(self, timeout_s: float) -> None: ...

    def stop(self) -> None: ...

    def end(self) -> AttemptEnd:
        try:
            self._train()
        except (StoreError, CheckpointException) as error:
            cause = cause_of(error) if isinstance(error, CheckpointException) else error
            assert isinstance(cause, StoreError), cause
            return AttemptEnd("failed", 0, failure=self._failure("store_unreachable", str(cause)), error=cause)
        except WrongArithmeticError as error:
            return AttemptEnd("failed", 1, failure=self._failure("wrong_arithmetic", str(error)), error=error)
        return AttemptEnd("succeeded", 1, message="done")

    def _failure(self, kind: FailureKind, text: str) -> Failure:
        number = self._orders.attempt.attempt
        return Failure(failure_kind=kind, run_id="r", attempt=number, signature=kind, text=text)

    def stepper(self, memory: Memory) -> RememberingStepper:
        return RememberingStepper(memory, UnusedRandom())

    def _train(self) -> None:
        """As `train_rank` wires it."""
        log = CommitLog(self._store, attempt=self._orders.attempt.attempt)
        memory, clock = Memory(), SystemClock()
        parts = training_parts(memory, torch.optim.SGD(memory.parameters(), lr=0.0))
        saver = Saver(parts, self._ranks, log, RETENTION, clock, verify_every=3, warn=messages.append)
        location = TrainingPosition(0, Cursor())
        try:
            if (commit := self._orders.commit) is not None:
                saver.restore(commit)
                location = TrainingPosition(commit.step, commit.cursor)
            trainer = trainer_of(self.stepper(memory), saver, clock, lambda step: step / 100)
            assert trainer.train(location) == "finished"
            last = log.commits()[-1]
            log.append(RunFinished(attempt=log.attempt, step=last.step, weights_digest=last.weights_digest))
        finally:
            saver._thread.shutdown()


class DoubtedRanks(RanksHere):
    """A check finds in step 7 that a device computes wrongly; and with that the store is away for good."""

    def stepper(self, memory: Memory) -> RememberingStepper:
        assert isinstance(self._store, RetryingStore) and isinstance(self._store._inner, FailingStore)
        failing = self._store._inner

        class Checked(RememberingStepper):
            def step(self, share: StepShare, *, step: int, **options: bool) -> StepTotals:
                if step == 7:
                    failing.go_away()
                    raise WrongArithmeticError("rank 0 computes wrongly", ())
                return super().step(share, step=step, **options)

        return Checked(memory, UnusedRandom())


class NodesHere:
    """Starts ranks here."""

    def __init__(
        self, store: ObjectStore, ranks: Ranks, ranks_type: Callable[[ObjectStore, Orders, Ranks], RanksHere]
    ) -> None:
        self._store = store
        self._ranks = ranks
        self._ranks_type = ranks_type
        self.processor = processor_here({})

    def other_environments(self) -> dict[str, NodeEnvironment]:
        return {}

    def fitting(self, world_size: int) -> int:
        return world_size

    def room(self, world_size: int) -> int:
        return world_size

    def leaving(self) -> list[str]:
        return []

    def hosts(self, world_size: int) -> list[str]:
        return ["host-0"] * world_size

    def start(self, orders: Orders) -> RanksHere:
        return self._ranks_type(self._store, orders, self._ranks)


def run_in(folder: Path) -> Run:
    folder.mkdir(parents=True)
    recipe = tiny_recipe()
    return Run(
        run_id="r",
        created_s=0.0,
        recipe=recipe,
        recipe_sha256=recipe_sha256(recipe, "f" * 64),
        dataset_fingerprint="f" * 64,
        code_version="test",
        run_dir=str(folder),
        store_url="memory:",
        num_steps=1,
    )


def drive(
    inner: ObjectStore,
    run: Run,
    ranks: Ranks,
    troubles: Mapping[int, Trouble],
    outage_s: float = OUTAGE_S,
    *,
    store_type: type[FailingStore] = FailingStore,
    ranks_type: type[RanksHere] = RanksHere,
) -> int:
    """One life of the supervisor, as `drive` wires it; the number of calls that it and its rank made."""
    clock = ManualClock()
    failing = store_type(inner, troubles, clock, outage_s=outage_s)
    store = patient(failing, clock)
    supervisor = Supervisor(
        run,
        CommitLog(store),
        policy=RestartPolicy(max_restarts=0),
        observers=[],
        clock=clock,
        nodes=NodesHere(store, ranks, ranks_type),
        retry_policy=store.retry_policy,
    )
    supervisor.run(1)
    return failing.num_calls


def is_whole(inner: ObjectStore, ranks: Ranks) -> bool:
    """Whether the run is finished, and its last commit is what nothing disturbed."""
    log, durable = CommitLog(inner), Memory()
    finished = log.finished()
    saver = Saver(
        training_parts(durable, torch.optim.SGD(durable.parameters(), lr=0.0)),
        ranks,
        log,
        RETENTION,
        SystemClock(),
    )
    saver.restore(log.commits()[-1])
    saver.close()
    return finished is not None and is_right(durable)


@pytest.fixture(scope="module")
def num_calls(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> int:
    """Of a run that nothing disturbs."""
    inner = open_store("memory:")
    calls = drive(inner, run_in(tmp_path_factory.mktemp("calm") / "r"), ranks, {})
    assert is_whole(inner, ranks)
    return calls


def check(troubles: Mapping[int, Trouble], outage_s: float, ranks: Ranks, folder: Path) -> None:
    """Drive until done: what is away for too long ends with 75, and the next start goes on."""
    inner, run = open_store("memory:"), run_in(folder)
    try:
        drive(inner, run, ranks, troubles, outage_s)
    except StoreAwayError as error:
        assert error.exit_code == 75
        assert outage_s > OUTAGE_S, f"{troubles}: {outage_s} s are waited for"
        drive(inner, run, ranks, {})
    assert is_whole(inner, ranks), (troubles, outage_s)


class FlippingStore(FailingStore):
    """Flips a bit of the first file that is written front to back."""

    has_flipped = False

    @contextmanager
    def open_writer(self, key: str) -> Iterator[IO[bytes]]:
        with super().open_writer(key) as writer:
            yield writer
            if not self.has_flipped:
                self.has_flipped = True
                writer.seek(100)
                byte = writer.read(1)[0]
                writer.seek(100)
                writer.write(bytes([byte ^ 1]))


class SlowStore(FailingStore):
    """Takes its time, once."""

    is_slow = True

    @contextmanager
    def open_writer(self, key: str) -> Iterator[IO[bytes]]:
        with super().open_writer(key) as writer:
            yield writer
        if self.is_slow:
            self.is_slow = False
            time.sleep(1.2)


def test_what_reads_back_as_something_else_is_not_committed(ranks: Ranks, tmp_path: Path) -> None:
    inner, run = open_store("memory:"), run_in(tmp_path / "r")
    with pytest.raises(StoreError, match="a commit reads back differently than it was written"):
        drive(inner, run, ranks, {}, store_type=FlippingStore)
    assert CommitLog(inner).commits() == []
    drive(inner, run, ranks, {})
    assert is_whole(inner, ranks)


def test_a_store_that_is_too_slow_for_the_commits_is_said_once(ranks: Ranks, tmp_path: Path) -> None:
    messages.clear()
    drive(open_store("memory:"), run_in(tmp_path / "r"), ranks, {}, store_type=SlowStore)
    (text,) = messages
    assert text.startswith("s3://simulated is too slow: a commit took 1.")
    assert "trainer.commit_every" in text


def test_commits_in_doubt_are_not_trusted_though_the_store_was_away_when_they_came_into_it(
    ranks: Ranks, tmp_path: Path
) -> None:
    inner, run = open_store("memory:"), run_in(tmp_path / "r")
    with pytest.raises(StoreAwayError):
        drive(inner, run, ranks, {}, ranks_type=DoubtedRanks)
    doubted = CommitLog(inner).commits()
    assert doubted and not any(commit.is_verified for commit in doubted)
    drive(inner, run, ranks, {})
    gone = [entry.folder for entry in CommitLog(inner).entries() if isinstance(entry, CommitQuarantined)]
    assert gone == [commit.folder for commit in reversed(doubted)]
    assert saved_attempts(Path(run.run_dir))[-1].start_step == 0
    assert is_whole(inner, ranks)


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    return (tmp_path / f"{number}" for number in count())


@pytest.mark.parametrize("trouble", ["lost", *slow(*(item for item in TROUBLES if item != "lost"))])
def test_a_run_survives_a_store_in_trouble_at_some_calls(
    trouble: Trouble, num_calls: int, ranks: Ranks, folders: Iterator[Path]
) -> None:
    rng = random.Random(trouble)
    for number in rng.sample(range(num_calls), 6):
        check({number: trouble}, rng.choice([OUTAGE_S, 1e6]), ranks, next(folders))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_run_survives_a_store_in_trouble_at_every_call(
    trouble: Trouble, num_calls: int, ranks: Ranks, folders: Iterator[Path]
) -> None:
    for number in range(num_calls):
        for outage_s in (OUTAGE_S, 1e6) if trouble in ("error", "hang") else (OUTAGE_S,):
            check({number: trouble}, outage_s, ranks, next(folders))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(20))
def test_a_run_survives_two_troubles_of_its_store(
    seed: int, num_calls: int, ranks: Ranks, folders: Iterator[Path]
) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        troubles = {rng.randrange(num_calls): rng.choice(TROUBLES) for _ in range(2)}
        check(troubles, rng.choice([OUTAGE_S, 1e6]), ranks, next(folders))


class StopsAtTrouble(FailingStore):
    """SIGTERM comes with the first trouble."""

    supervisor: Supervisor | None = None
    stop_requested_s: float | None = None

    def _in_trouble(self, trouble: Trouble | None, call: Callable[[], Response]) -> Response:
        if trouble is not None and self.stop_requested_s is None and self.supervisor is not None:
            self.stop_requested_s = self._clock.at_s
            self.supervisor.request_stop()
        return super()._in_trouble(trouble, call)


def heeds_sigterm(trouble: Trouble, number: int, ranks: Ranks, folder: Path) -> bool:
    """Whether SIGTERM at a call of the supervisor's, that is in trouble for good, was heeded in time; False
    where it makes no such call."""
    inner, run, clock = open_store("memory:"), run_in(folder), ManualClock()
    failing = StopsAtTrouble(inner, {number: trouble}, clock, outage_s=1e9)
    store = patient(failing, clock)
    failing.supervisor = Supervisor(
        run,
        CommitLog(store),
        policy=RestartPolicy(max_restarts=0),
        observers=[],
        clock=clock,
        nodes=NodesHere(patient(inner, clock), ranks, RanksHere),
        retry_policy=store.retry_policy,
    )
    try:
        failing.supervisor.run(1)
    except StoreAwayError as error:
        assert error.exit_code == 75
    if failing.stop_requested_s is None:
        return False
    took_s = clock.at_s - failing.stop_requested_s
    assert took_s <= SLOW_RESPONSE_S[trouble] + LEAVE_S, (trouble, number, took_s)
    drive(inner, run, ranks, {})
    assert is_whole(inner, ranks), (trouble, number)
    return True


class WaitingRanks(RanksHere):
    """Their commit waits for a store that went away at their first news, with which SIGTERM came."""

    supervisor: Supervisor
    clock: ManualClock

    def wait_for_news(self, timeout_s: float) -> None:
        assert isinstance(self._store, RetryingStore) and isinstance(self._store._inner, FailingStore)
        self._store._inner.go_away()
        self.supervisor.request_stop()
        self.clock.sleep_s(timeout_s / 10)
        time.sleep(0.001)

    def end(self) -> None:  # type: ignore[override]
        return None

    def beats(self) -> list[Beat]:
        return [Beat(5, "checkpoint", 0.0, 0.0, 0.0)]

    def signal(self, number: int) -> None: ...


def test_sigterm_is_heeded_in_time_while_ranks_wait_for_a_store_that_is_away(ranks: Ranks, tmp_path: Path) -> None:
    inner, run, clock = open_store("memory:"), run_in(tmp_path / "r"), ManualClock()
    store = patient(FailingStore(inner, {}, clock), clock)
    WaitingRanks.clock = clock
    supervisor = WaitingRanks.supervisor = Supervisor(
        run,
        CommitLog(store),
        policy=RestartPolicy(max_restarts=0, grace_s=60.0),
        observers=[],
        clock=clock,
        nodes=NodesHere(store, ranks, WaitingRanks),
        retry_policy=store.retry_policy,
    )
    with pytest.raises(StoreAwayError, match=r"Everything committed is intact|no answer in time"):
        supervisor.run(1)
    assert clock.at_s <= LEAVE_S
    (attempt,) = saved_attempts(tmp_path / "r")
    assert attempt.failure is not None
    assert (attempt.outcome, attempt.failure.failure_kind) == ("preempted", "store_unreachable")


SLOW_RESPONSE_S: Mapping[Trouble, float] = {trouble: 60.0 if trouble == "slow" else 0.0 for trouble in TROUBLES}
"""What was asked before is waited for, if an answer comes."""
LEAVE_S = 2 * HURRIED_S
"""One call that was under way, and one more."""


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["hang", *soaked(*(item for item in TROUBLES if item != "hang"))])
def test_sigterm_is_heeded_in_time_at_every_call_of_the_supervisor_that_is_in_trouble(
    trouble: Trouble, ranks: Ranks, folders: Iterator[Path]
) -> None:
    numbers = itertools.takewhile(lambda number: heeds_sigterm(trouble, number, ranks, next(folders)), count())
    assert sum(1 for _ in numbers) > 5
