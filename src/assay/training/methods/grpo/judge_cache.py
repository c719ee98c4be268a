"""Calls external judges once for each completion; grades are stored in the run's reward cache.

completion --(row, sample, rollout digest) in the cache?--> yes: cached grade | no: call the judge, store, then use
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, cast

from assay.base.errors import DataError
from assay.records.rollout_log import JudgeScore, JudgeScoreGroup
from assay.scoring.grade import Grade, ItemFailure, ItemFailureKind
from assay.scoring.graders import grader_sha256
from assay.training.checkpoint.reward_cache import RewardCache
from assay.training.methods.grpo.reward_config import GraderReward


class JudgeBatch(NamedTuple):
    """The completions of a step that are graded, and the cache for their grades."""

    step: int
    row_ids: Sequence[int]
    """Row ids of the prompts, one for each group."""
    digests: Sequence[int]
    """Digests of the completions, group after group."""
    reward_cache: RewardCache

    @property
    def size(self) -> int:
        return len(self.digests) // max(1, len(self.row_ids))


def cached_grades(
    groups: JudgeBatch,
    reward: GraderReward,
    *,
    index: int,
    grade_indices: Callable[[list[int]], list[Grade]],
    at_once: int,
) -> list[Grade]:
    """Return the grades of all completions by reward number `index`.

    `grade_indices` calls the judge for the completions at some indices; `at_once` groups are graded concurrently.
    """
    cached, reward_cache, size = _cached_grades(groups, index), groups.reward_cache, groups.size

    def grade_group(number: int) -> list[Grade]:
        row, indices = groups.row_ids[number], range(number * size, (number + 1) * size)
        keys = [(row, sample, _name(groups, rollout_index)) for sample, rollout_index in enumerate(indices)]
        uncached = [sample for sample, name in enumerate(keys) if name not in cached]
        if uncached and reward_cache.is_read_only:
            raise DataError(
                f"step {groups.step}, row {row}: the run's rollout log has no grade of grader "
                f"'{reward.name}', and a judge is not called twice. 'assay runs audit' lists what is missing."
            )
        if uncached:
            grades = grade_indices([indices[sample] for sample in uncached])
            entry = JudgeScoreGroup(
                step=groups.step,
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
        return [grade for grades in pool.map(grade_group, range(len(groups.row_ids))) for grade in grades]


def _cached_grades(groups: JudgeBatch, index: int) -> dict[tuple[int, int, str], JudgeScore]:
    """Return the cached grades by row, sample and digest; a read-only cache ignores the digest."""
    reward_cache = groups.reward_cache
    return {
        (row_id, grade.sample, "" if reward_cache.is_read_only else grade.rollout): grade
        for attempt, row_id, grade in reward_cache.grades(groups.step, groups.row_ids, reward=index)
        if reward_cache.is_read_only or grade.score is not None or attempt == reward_cache.attempt
    }


def _name(groups: JudgeBatch, rollout_index: int) -> str:
    return "" if groups.reward_cache.is_read_only else f"{groups.digests[rollout_index]:016x}"


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
