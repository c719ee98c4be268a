"""The real loader, trainer, saver and commit log on a store that loses power.

One seed decides the cuts and the requests to stop; a failure prints the seed, and the seed is the reproduction.
Only the arithmetic is made up: the "weights" count how often a row was learned, and note the step in which it
was, so a row that is lost, learned twice, or learned from old weights shows. One rank has all lanes, in this
process; `test_order.py` has other numbers of ranks, and `tests/integration` other processes.
"""

import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

from assay.base.clock import SystemClock
from assay.base.seeds import mix64
from assay.data.loader.batch import StepShare
from assay.data.loader.config import LoaderConfig
from assay.data.loader.loader import Loader
from assay.distributed.ranks import Ranks
from assay.records.commit import Commit
from assay.records.cursor import Cursor
from assay.store import commit_log
from assay.store.commit_log import CommitLog
from assay.store.objects import ObjectStore, open_store
from assay.training.checkpoint.parts import training_parts
from assay.training.checkpoint.retention import RetentionConfig
from assay.training.checkpoint.saver import Saver
from assay.training.trainer.config import TrainerConfig
from assay.training.trainer.step import StartedStep, StepTotals
from assay.training.trainer.trainer import Trainer, TrainingPosition
from power_cut_store import PowerCut, PowerCutStore
from variants import slow

NUM_ROWS = 157
LANES = range(4)
MAX_RESTARTS = 200
MOST_WRITES = (12, 40)
"""Of an attempt before the power is cut, one or the other; a commit takes about eight."""
CONFIG = TrainerConfig(commit_every=2, evaluate_every=4, spot_check_every=None)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """This process alone, with the real groups."""
    rendezvous = tmp_path_factory.mktemp("ranks") / "rendezvous"
    ranks = Ranks.join(rank=0, world_size=1, rendezvous=f"file://{rendezvous}", num_threads=torch.get_num_threads())
    yield ranks
    ranks.leave()


@pytest.fixture(scope="module", autouse=True)
def many_summaries() -> Iterator[None]:
    """As in runs of thousands of commits, an attempt goes on from what its log comes to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit_log, "SUMMARY_EVERY", 3)
        yield


class ArraySource:
    """Row groups of given sizes; each row has two tokens."""

    fingerprint = "f" * 64

    def __init__(self, sizes: list[int]) -> None:
        self.num_rows = np.array(sizes, np.int64)
        self.identities = mix64(np.arange(len(sizes), dtype=np.uint64))
        self._borders = np.cumsum([0, *sizes])

    def row_ids(self, group):
        return np.arange(self._borders[group], self._borders[group + 1], dtype=np.uint64)

    def read(self, group, columns):
        rows = self.row_ids(group)
        return pa.table({"input_ids": pa.array([[1, 2]] * len(rows), pa.list_(pa.int32()))})

    def shard_of(self, group):
        return f"shard-{group}"


def loader() -> Loader:
    config = LoaderConfig(lanes=4, global_batch_size=12, window_rows=6, prefetch_steps=0, threads=1)
    return Loader(ArraySource([31, 1, 60, 40, 25]), config, ("input_ids",))


class Memory(nn.Module):
    """Weights that remember: how often each row was learned, and in which step last."""

    def __init__(self) -> None:
        super().__init__()
        self.times_trained = nn.Parameter(torch.zeros(NUM_ROWS))
        self.trained_at = nn.Parameter(torch.zeros(NUM_ROWS))


class RememberingStepper:
    """Learns a row by counting it; is asked to stop now and then."""

    def __init__(self, memory: Memory, rng: random.Random) -> None:
        self._memory = memory
        self._rng = rng

    @torch.no_grad()
    def step(self, share: StepShare, *, step: int, stop_requested: bool, commit_requested: bool = False) -> StepTotals:
        rows = [int(row) for lane in share.lanes for batch in lane.micro_batches for row in batch.row_ids]
        self._memory.times_trained[rows] += 1
        self._memory.trained_at[rows] = step
        events: dict[str, Any] = dict.fromkeys(set(StepTotals._fields) - StepTotals._field_defaults.keys(), 0)
        events |= {"num_rows": len(rows), "stop_requested": self._rng.random() < 0.03, "bad_lanes": ()}
        return StepTotals(**events)

    def start(self, share: StepShare, **options: Any) -> StartedStep:
        totals = self.step(share, **options)
        return StartedStep(lambda: totals, is_running=False)


class Silent:
    """A recorder that nobody reads."""

    def phase(self, name: str) -> None: ...
    def log(self, step: int, values: object) -> None: ...
    def sync(self) -> None: ...


class CursorApart(Saver):
    """Wrong on purpose: where to go on is saved by itself, before the weights."""

    def begin(self, *, step: int, cursor: Cursor, **rest: Any) -> None:
        self._log.store.put("place", f"{step} {cursor.epoch} {cursor.step_in_epoch}".encode())
        super().begin(step=step, cursor=cursor, **rest)

    def position_of(self, commit: Commit) -> TrainingPosition:
        match self._log.store.get("place").split():
            case [step, epoch, step_in_epoch]:
                return TrainingPosition(int(step), Cursor(epoch=int(epoch), step_in_epoch=int(step_in_epoch)))
            case _:  # the power went while it was written
                return TrainingPosition(commit.step, commit.cursor)


class CursorAhead(Saver):
    """Wrong on purpose: where to go on is what was read, and not what was learned."""

    def begin(self, *, cursor: Cursor, **rest: Any) -> None:
        super().begin(cursor=loader().next_cursor(cursor), **rest)


def trainer_of(
    stepper: RememberingStepper, saver: Saver, clock: SystemClock, evaluate: Callable[[int], float]
) -> Trainer:
    """As `train_rank` wires it, with a memory in the place of a model."""
    rows = loader()
    context: Any = SimpleNamespace(
        loader=rows,
        config=CONFIG,
        clock=clock,
        is_stopping=lambda: False,
        num_steps=CONFIG.num_steps(rows.steps_per_epoch),
    )
    return Trainer(
        context,
        stepper,  # type: ignore[arg-type]
        saver,
        Silent(),
        lanes=LANES,
        failure_s=1e9,
        evaluate=evaluate,
    )


def attempt(store: ObjectStore, saver_type: type[Saver], ranks: Ranks, rng: random.Random) -> Memory | None:
    """One life of the run, as `train_rank` wires it: from the last intact commit on; None if asked to stop."""
    log = CommitLog(store)
    log.begin_attempt(world_size=1, now_s=0.0)
    memory, clock = Memory(), SystemClock()
    optimizer = torch.optim.SGD(memory.parameters(), lr=0.0)
    saver = saver_type(training_parts(memory, optimizer), ranks, log, RetentionConfig(keep_last=2, keep_best=1), clock)
    location = TrainingPosition(0, Cursor())
    if (commit := log.last_intact_commit()) is not None:
        saver.restore(commit)
        location = TrainingPosition(commit.step, commit.cursor)
        if isinstance(saver, CursorApart):
            location = saver.position_of(commit)
    trainer = trainer_of(RememberingStepper(memory, rng), saver, clock, lambda step: rng.random())
    try:
        return memory if trainer.train(location) == "finished" else None
    finally:
        saver._thread.shutdown()


def was_cut(error: BaseException) -> bool:
    """The power went, be it in the midst of DCP, which hands on what a rank raised."""
    if isinstance(error, CheckpointException):
        return any(isinstance(failure, PowerCut) for failure, _ in error.failures.values())
    return isinstance(error, PowerCut)


def simulate(seed: int, ranks: Ranks, saver_type: type[Saver] = Saver) -> Memory:
    """Restart until done, cutting the power after a few writes; the weights at the end, as they are durable."""
    rng = random.Random(seed)
    store = open_store("memory:")
    for _ in range(MAX_RESTARTS):
        faulty = PowerCutStore(store, writes_left=rng.randrange(1, rng.choice(MOST_WRITES)), rng=rng)
        try:
            finished = attempt(faulty, saver_type, ranks, rng)
        except BaseException as error:
            if not was_cut(error):
                raise
            continue
        if finished is not None:
            durable = Memory()
            log = CommitLog(store)
            optimizer = torch.optim.SGD(durable.parameters(), lr=0.0)
            reader = Saver(training_parts(durable, optimizer), ranks, log, RetentionConfig(), SystemClock())
            reader.restore(log.commits()[-1])
            reader.close()
            return durable
    raise AssertionError(f"seed {seed}: no end in {MAX_RESTARTS} restarts")


def undisturbed() -> torch.Tensor:
    """The step in which each row is learned when nothing happens."""
    rows, trained_at = loader(), torch.zeros(NUM_ROWS)
    for step, share in enumerate(rows.shares(Cursor(), LANES, rows.steps_per_epoch), start=1):
        for lane in share.lanes:
            for batch in lane.micro_batches:
                trained_at[batch.row_ids.astype(np.int64)] = step
    return trained_at


def is_right(memory: Memory) -> bool:
    once = torch.equal(memory.times_trained, torch.ones(NUM_ROWS))
    return once and torch.equal(memory.trained_at, undisturbed())


@pytest.mark.parametrize("seed", [*range(3), *slow(*range(3, 30))])
def test_each_row_is_learned_once_wherever_the_power_is_cut(seed: int, ranks: Ranks) -> None:
    assert is_right(simulate(seed, ranks))


@pytest.mark.parametrize("wrong", [CursorApart, CursorAhead])
def test_the_simulation_finds_a_program_whose_cursor_is_not_that_of_its_weights(
    wrong: type[Saver], ranks: Ranks
) -> None:
    assert not all(is_right(simulate(seed, ranks, wrong)) for seed in range(6))
