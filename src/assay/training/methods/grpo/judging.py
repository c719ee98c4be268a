"""Asks judges behind endpoints once: what is in the run's book is taken, what they say now is put there first.

group of answers --known by (row, sample, rollout digest)?--> yes: that | no: asked, kept, and only then paid
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, cast

from assay.base.errors import DataError
from assay.records.journal import JudgedAnswer, JudgedGroup
from assay.scoring.grade import Grade
from assay.scoring.graders import grader_sha256
from assay.scoring.item_failure import ItemFailure, ItemFailureKind
from assay.training.checkpoint.grade_book import GradeBook
from assay.training.methods.grpo.reward_config import GraderReward


class JudgedGroups(NamedTuple):
    """Whose answers are graded, and where the words of judges about them are kept."""

    step: int
    row_ids: Sequence[int]
    """The prompts', one for each group."""
    digests: Sequence[int]
    """The answers', group after group."""
    book: GradeBook

    @property
    def size(self) -> int:
        """Answers in a group."""
        return len(self.digests) // max(1, len(self.row_ids))


def judged_grades(
    groups: JudgedGroups,
    reward: GraderReward,
    *,
    index: int,
    ask: Callable[[list[int]], list[Grade]],
    at_once: int,
) -> list[Grade]:
    """Grades of all answers by reward number `index`; `ask` grades those of some places, so many groups
    `at_once`."""
    known, book, size = _known(groups, index), groups.book, groups.size

    def of_group(number: int) -> list[Grade]:
        row, places = groups.row_ids[number], range(number * size, (number + 1) * size)
        names = [(row, sample, _name(groups, place)) for sample, place in enumerate(places)]
        missing = [sample for sample, name in enumerate(names) if name not in known]
        if missing and book.is_read_only:
            raise DataError(
                f"step {groups.step}, row {row}: the run's journal does not say what grader "
                f"'{reward.name}' paid, and a judge is not asked twice. 'assay audit' says what is missing."
            )
        if missing:
            grades = ask([places[sample] for sample in missing])
            said = JudgedGroup(
                step=groups.step,
                row_id=row,
                attempt=book.attempt,
                grader=reward.name,
                grader_sha256=grader_sha256(reward.grader),
                answers=tuple(
                    _as_said(sample, names[sample][2], grade)
                    for sample, grade in zip(missing, grades, strict=True)
                ),
            )
            for answer in book.keep(said, reward=index).answers:
                known[row, answer.sample, answer.rollout] = answer
        return [_as_grade(known[name]) for name in names]

    with ThreadPoolExecutor(at_once, thread_name_prefix="judging") as pool:
        return [grade for grades in pool.map(of_group, range(len(groups.row_ids))) for grade in grades]


def _known(groups: JudgedGroups, index: int) -> dict[tuple[int, int, str], JudgedAnswer]:
    """Words by row, number of the answer and digest; whoever only looks takes them for whatever came out."""
    book = groups.book
    return {
        (row_id, answer.sample, "" if book.is_read_only else answer.rollout): answer
        for attempt, row_id, answer in book.said(groups.step, groups.row_ids, reward=index)
        if book.is_read_only or answer.score is not None or attempt == book.attempt
    }


def _name(groups: JudgedGroups, place: int) -> str:
    return "" if groups.book.is_read_only else f"{groups.digests[place]:016x}"


def _as_said(sample: int, rollout: str, grade: Grade) -> JudgedAnswer:
    failure = grade.failure
    return JudgedAnswer(
        sample=sample,
        rollout=rollout,
        score=grade.score,
        failure_kind="" if failure is None else failure.kind,
        failure="" if failure is None else failure.text,
    )


def _as_grade(said: JudgedAnswer) -> Grade:
    if said.score is not None:
        return Grade(said.score)
    return Grade(None, ItemFailure(cast(ItemFailureKind, said.failure_kind), said.failure))
