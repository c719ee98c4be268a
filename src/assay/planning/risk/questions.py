"""What-ifs and readings of a rule, each solved anew and played under the same luck as the plan as it is."""

from collections.abc import Iterable
from typing import NamedTuple

from assay.planning.program.offer import Safety
from assay.planning.risk.offer import baseline_of, safety_of
from assay.planning.risk.outcome import Outcome, simulate
from assay.planning.what_if import Answer

QUESTION_WORLDS = 16_384
"""Played for each what-if and reading: their quantiles of the date, too, are the same to 1% for each seed."""


class AnsweredQuestion(NamedTuple):
    """A question about the world, with its answer when nothing happens and under the simulation."""

    answer: Answer
    safety: Safety | None
    """None where nothing fits."""
    device_hours_saved: float | None
    """On average, against the first; negative where it costs more. None where one of them has no plan."""


def played(
    answers: Iterable[Answer], *, num_worlds: int = QUESTION_WORLDS, seed: int = 0
) -> tuple[AnsweredQuestion, ...]:
    """Play each; the first is what the others are held against."""
    outcomes = [(each, _outcome(each, num_worlds, seed)) for each in answers]
    base = outcomes[0][1] if outcomes else None
    return tuple(
        AnsweredQuestion(each, None if found is None else safety_of(found), _saved(base, found))
        for each, found in outcomes
    )


def _outcome(answer: Answer, num_worlds: int, seed: int) -> Outcome | None:
    if answer.plan is None:
        return None
    return simulate(answer.program, baseline_of(answer.plan), num_worlds=num_worlds, seed=seed)


def _saved(base: Outcome | None, found: Outcome | None) -> float | None:
    if base is None or found is None:
        return None
    return float(base.device_hours.mean() - found.device_hours.mean())
