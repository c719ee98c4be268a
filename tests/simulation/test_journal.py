"""Answers that a judge pays as it likes, on a store that loses power: who is asked, and what is accounted for.

Trainer, saver, log of commits, grade book and journal are real. Made up are the arithmetic and the judge: the
weights remember what each row was paid, an answer's digest follows from the weights, and the judge draws its
mark anew whenever it is asked, or fails. One seed decides all; a failure prints it, and it is the reproduction.
"""

import io
import random
import sys
from collections import Counter
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from assay.base.clock import SystemClock
from assay.base.seeds import derive_key
from assay.data.loader.batch import LaneShare, StepShare
from assay.distributed.ranks import Ranks
from assay.inference.rollout import Rollout
from assay.records.commit import Commit, FileDigest
from assay.records.cursor import Cursor
from assay.records.rollout_log import GroupRecord, JudgeScoreGroup, RolloutRecord
from assay.scoring.grade import Grade, ItemFailure
from assay.store.commit_log import ROLLOUT_LOG_NAME, CommitLog, effective_commits
from assay.store.objects import ObjectStore, open_store
from assay.training.checkpoint.parts import training_parts
from assay.training.checkpoint.retention import RetentionConfig
from assay.training.checkpoint.reward_cache import RewardCache
from assay.training.checkpoint.rollout_log import rollout_log_file
from assay.training.checkpoint.saver import LaneReceipts, Saver
from assay.training.methods.grpo.batch import RolloutGroup
from assay.training.methods.grpo.reward_config import GraderReward
from assay.training.methods.grpo.rewards import cached_grades
from assay.training.trainer.step import StartedStep, StepTotals
from assay.training.trainer.trainer import TrainingPosition
from judging import JUDGE
from power_cut_store import PowerCutStore
from simulation.test_power_cuts import MAX_RESTARTS, NUM_ROWS, CursorAhead, CursorApart, trainer_of, was_cut
from simulation.test_power_cuts import many_summaries as many_summaries
from simulation.test_power_cuts import ranks as ranks
from variants import slow, soaked

SIZE = 2
MOST_WRITES = (20, 90)
"""Of an attempt; a step puts twelve words of the judge, a commit about ten objects."""
REWARD = GraderReward.model_validate({"grader": JUDGE})


class RewardWeights(nn.Module):
    """Weights that remember how often each row was learned, and what it was paid in all."""

    def __init__(self) -> None:
        super().__init__()
        self.times_trained = nn.Parameter(torch.zeros(NUM_ROWS))
        self.reward_sums = nn.Parameter(torch.zeros(NUM_ROWS, dtype=torch.float64))


class Judge:
    """Marks at random, fails now and then, and knows what is durable when it is asked."""

    def __init__(self, store: ObjectStore, rng: random.Random) -> None:
        self._store = store
        self._rng = rng
        self.repeated_requests: list[tuple[int, int, int, str]] = []

    def grade(self, step: int, row: int, samples: list[tuple[int, str]]) -> list[Grade]:
        marked = self._marked(step, row)
        self.repeated_requests += [(step, row, *sample) for sample in samples if sample in marked]
        broken = Grade(None, ItemFailure("model_grader_server_error", "silent"))
        return [broken if self._rng.random() < 0.05 else Grade(self._rng.random()) for _ in samples]

    def _marked(self, step: int, row: int) -> set[tuple[int, str]]:
        """What has a score in the store, by its bytes alone."""
        keys = [item.key for item in self._store.list(f"judged/{step:08d}/{row:016x}-")]
        groups = [JudgeScoreGroup.from_json(self._store.get(key), source=key) for key in keys]
        return {
            (element.sample, element.rollout) for one in groups for element in one.scores if element.score is not None
        }


class RewardStepper:
    """Learns each row by what a judge paid for two answers to it."""

    def __init__(self, weights: RewardWeights, reward_cache: RewardCache, judge: Judge, rng: random.Random) -> None:
        self._weights = weights
        self._reward_cache = reward_cache
        self._judge = judge
        self._rng = rng

    @torch.no_grad()
    def step(self, share: StepShare, *, step: int, stop_requested: bool, commit_requested: bool = False) -> StepTotals:
        groups = [group for lane in share.lanes for group in self._groups(lane, step)]
        for group in groups:
            self._weights.times_trained[group.row_id] += 1
            self._weights.reward_sums[group.row_id] += sum(item.reward or 0.0 for item in group.completions)
        events: dict[str, Any] = dict.fromkeys(set(StepTotals._fields) - StepTotals._field_defaults.keys(), 0)
        events |= {"num_rows": len(groups), "stop_requested": self._rng.random() < 0.03, "bad_lanes": ()}
        return StepTotals(**events, log=tuple(groups))

    def start(self, share: StepShare, **options: Any) -> StartedStep:
        totals = self.step(share, **options)
        return StartedStep(lambda: totals, is_running=False)

    def _groups(self, lane: LaneShare, step: int) -> list[GroupRecord]:
        rows = [int(row) for batch in lane.micro_batches for row in batch.row_ids]
        version = float(self._weights.reward_sums.sum())
        keys = [derive_key(step, row, sample, str(version)) for row in rows for sample in range(SIZE)]
        rollouts = [Rollout(np.array([key], np.uint64).view(np.int64), np.zeros(1, np.float32), "stop") for key in keys]
        digests = [rollout.digest for rollout in rollouts]

        def grade(locations: list[int]) -> list[Grade]:
            return self._judge.grade(
                step,
                rows[locations[0] // SIZE],
                [(location % SIZE, f"{digests[location]:016x}") for location in locations],
            )

        groups = [
            RolloutGroup(row, np.zeros(1, np.int64), {}, rollouts[at * SIZE : (at + 1) * SIZE])
            for at, row in enumerate(rows)
        ]
        cache = self._reward_cache
        grades = (
            cached_grades(groups, REWARD, cache, step=step, index=0, grade_indices=grade, at_once=1) if rows else []
        )
        return [
            GroupRecord(
                step, lane.lane, row, "trained", "[]",
                tuple(
                    RolloutRecord(
                        digests[location], 1, False, grades[location].score, (grades[location].score,), 0.0,
                        failure_kind="" if (failure := grades[location].failure) is None else failure.kind,
                    )
                    for location in range(number * SIZE, (number + 1) * SIZE)
                ),
            )
            for number, row in enumerate(rows)
        ]  # fmt: skip


class RolloutLogAfter(Saver):
    """Wrong on purpose: the journal is put when the commit is there."""

    def _put_accounts(self, folder: str, parts: list[LaneReceipts]) -> list[FileDigest]:
        bare = [LaneReceipts(part.rows, part.quarantined) for part in parts]
        self._late = folder, rollout_log_file([table for part in parts for table in part.rollout_log])
        return super()._put_accounts(folder, bare)

    def _save(self, *arguments: Any) -> Commit | None:
        commit = super()._save(*arguments)
        folder, data = self._late
        self._log.store.put(f"{folder}/{ROLLOUT_LOG_NAME}", data)
        return commit


class Forgetful(RewardCache):
    """Wrong on purpose: what judges say is kept with the commit only."""

    def grades(self, *_: Any, **__: Any) -> list[Any]:
        return []


def attempt(store: ObjectStore, wrong: type | None, ranks: Ranks, judge: Judge, rng: random.Random) -> bool:
    """One life of the run; whether it is done."""
    saver_type = wrong if wrong is not None and issubclass(wrong, Saver) else Saver
    cache_type = wrong if wrong is not None and issubclass(wrong, RewardCache) else RewardCache
    log = CommitLog(store)
    number = log.begin_attempt(world_size=1, now_s=0.0)
    log.sweep_abandoned()
    weights, clock = RewardWeights(), SystemClock()
    optimizer = torch.optim.SGD(weights.parameters(), lr=0.0)
    saver = saver_type(training_parts(weights, optimizer), ranks, log, RetentionConfig(keep_last=2), clock)
    location = TrainingPosition(0, Cursor())
    if (commit := log.last_intact_commit()) is not None:
        saver.restore(commit)
        location = TrainingPosition(commit.step, commit.cursor)
        if isinstance(saver, CursorApart):
            location = saver.position_of(commit)
    stepper = RewardStepper(weights, cache_type(store, attempt=number), judge, rng)
    trainer = trainer_of(stepper, saver, clock, lambda step: rng.random())  # type: ignore[arg-type]
    try:
        return trainer.train(location) == "finished"
    finally:
        saver._thread.shutdown()


def problems(seed: int, ranks: Ranks, wrong: type | None = None, *, only_cut: int | None = None) -> list[str]:
    """Restart until done, cutting the power after some writes, or once after so many; what is wrong then."""
    rng = random.Random(seed)
    store = open_store("memory:")
    judge = Judge(store, rng)
    for life in range(MAX_RESTARTS):
        writes = rng.randrange(10, rng.choice(MOST_WRITES))
        if only_cut is not None:
            writes = only_cut if life == 0 else sys.maxsize
        faulty = PowerCutStore(store, writes_left=writes, rng=rng)
        try:
            if attempt(faulty, wrong, ranks, judge, rng):
                return [*unaccounted(store, ranks), *(f"asked twice: {item}" for item in judge.repeated_requests)]
        except BaseException as error:
            if not was_cut(error):
                raise
    raise AssertionError(f"seed {seed}: no end in {MAX_RESTARTS} restarts")


def unaccounted(store: ObjectStore, ranks: Ranks) -> list[str]:
    """Where the last weights and the journals, by their bytes alone, do not say the same of every prompt."""
    log, weights = CommitLog(store), RewardWeights()
    commits = effective_commits(log.entries())
    optimizer = torch.optim.SGD(weights.parameters(), lr=0.0)
    reader = Saver(training_parts(weights, optimizer), ranks, log, RetentionConfig(), SystemClock())
    reader.restore(commits[-1])
    reader.close()
    lines = Counter[int]()
    rewards = np.zeros(NUM_ROWS)
    for commit in commits:
        key = f"{commit.folder}/{ROLLOUT_LOG_NAME}"
        if not store.exists(key):
            return [f"{key} is missing"]
        for line in pq.read_table(io.BytesIO(store.get(key))).to_pylist():
            lines[line["row_id"]] += 1
            rewards[line["row_id"]] += line["reward"] or 0.0
    found = [f"row {row} has {lines[row]} lines" for row in range(NUM_ROWS) if lines[row] != SIZE]
    if not np.allclose(rewards, weights.reward_sums.detach().numpy()):
        found.append("the weights learned by other rewards than the journal has")
    times = weights.times_trained.tolist()
    return found + [f"row {row} was learned {times[row]} times" for row in range(NUM_ROWS) if times[row] != 1]


@pytest.mark.parametrize("seed", [1, *slow(0, *range(2, 8)), *soaked(*range(8, 24))])
def test_no_prompt_is_lost_and_no_judge_asked_twice_wherever_the_power_is_cut(seed: int, ranks: Ranks) -> None:
    assert problems(seed, ranks) == []


@pytest.mark.slow
@pytest.mark.parametrize("num_writes", [*range(0, 70, 5), *soaked(*(number for number in range(70) if number % 5))])
def test_likewise_where_it_is_cut_once_at_any_write(num_writes: int, ranks: Ranks) -> None:
    assert problems(num_writes, ranks, only_cut=num_writes) == []


@pytest.mark.parametrize("wrong", [RolloutLogAfter, *slow(Forgetful, CursorApart, CursorAhead)])
def test_the_simulation_finds_a_program_that_accounts_or_asks_wrongly(wrong: type, ranks: Ranks) -> None:
    assert any(problems(seed, ranks, wrong) for seed in range(6))
