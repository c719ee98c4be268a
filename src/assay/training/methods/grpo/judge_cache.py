"""Calls external judges once for each completion; grades are stored in the run's reward cache.

completion --(row, sample, rollout digest) in the cache?--> yes: cached grade | no: call the judge, store, then use
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import numpy as np

from assay.base.errors import DataError
from assay.records.rollout_log import JudgeScore, JudgeScoreGroup
from assay.scoring.grade import Grade, ItemFailure, ItemFailureKind
from assay.scoring.graders import grader_sha256
from assay.training.checkpoint.reward_cache import RewardCache
from assay.training.methods.grpo.batch import RolloutGroup
from assay.training.methods.grpo.reward_config import GraderReward


def cached_grades(
    groups: Sequence[RolloutGroup],
    reward: GraderReward,
    reward_cache: RewardCache,
    *,
    step: int,
    index: int,
    grade_indices: Callable[[list[int]], list[Grade]],
    at_once: int,
) -> list[Grade]:
    """Return the grades of all rollouts of a step by reward number `index`, group after group.

    `grade_indices` calls the judge for the rollouts at some indices; `at_once` groups are graded concurrently.
    """
    starts = np.cumsum([0, *(len(group.rollouts) for group in groups)]).tolist()
    # A read-only cache ignores the digest of the rollout.
    is_read_only = reward_cache.is_read_only
    cached = {
        (row_id, grade.sample, "" if is_read_only else grade.rollout): grade
        for attempt, row_id, grade in reward_cache.grades(step, [group.row_id for group in groups], reward=index)
        if is_read_only or grade.score is not None or attempt == reward_cache.attempt
    }

    def grade_group(number: int) -> list[Grade]:
        row = groups[number].row_id
        names = ["" if is_read_only else f"{rollout.digest:016x}" for rollout in groups[number].rollouts]
        keys = [(row, sample, name) for sample, name in enumerate(names)]
        uncached = [sample for sample, name in enumerate(keys) if name not in cached]
        if uncached and is_read_only:
            raise DataError(
                f"step {step}, row {row}: the run's rollout log has no grade of grader "
                f"'{reward.name}', and a judge is not called twice. 'assay runs audit' lists what is missing."
            )
        if uncached:
            grades = grade_indices([starts[number] + sample for sample in uncached])
            entry = JudgeScoreGroup(
                step=step,
                row_id=row,
                attempt=reward_cache.attempt,
                grader=reward.name,
                grader_sha256=grader_sha256(reward.grader),
                scores=tuple(
                    _cache_entry(sample, keys[sample][2], grade) for sample, grade in zip(uncached, grades, strict=True)
                ),
            )
            for grade in reward_cache.keep(entry, reward=index).scores:
                cached[row, grade.sample, grade.rollout] = grade
        return [_as_grade(cached[name]) for name in keys]

    with ThreadPoolExecutor(at_once, thread_name_prefix="judging") as pool:
        return [grade for grades in pool.map(grade_group, range(len(groups))) for grade in grades]


def _cache_entry(sample: int, rollout: str, grade: Grade) -> JudgeScore:
    failure = grade.failure
    return JudgeScore(
        sample=sample,
        rollout=rollout,
        score=grade.score,
        failure_kind="" if failure is None else failure.kind,
        failure="" if failure is None else failure.text,
    )


def _as_grade(entry: JudgeScore) -> Grade:
    if entry.score is not None:
        return Grade(entry.score)
    return Grade(None, ItemFailure(cast(ItemFailureKind, entry.failure_kind), entry.failure))
