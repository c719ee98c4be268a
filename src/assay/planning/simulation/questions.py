"""What-ifs and readings of a rule, each solved anew and played under the same luck as the plan as it is."""

from collections.abc import Iterable
from typing import NamedTuple

from assay.planning.program.offer import Safety
from assay.planning.simulation.offer import baseline_of, safety_of
from assay.planning.simulation.outcome import Outcome, simulate_each
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
    found: list[AnsweredQuestion] = []
    base_h: float | None = None
    known: list[Outcome] = []
    for number, answer in enumerate(answers):
        if answer.plan is None:
            found.append(AnsweredQuestion(answer, None, None))
            continue
        lot = [(answer.program, baseline_of(answer.plan))]
        (outcome,) = simulate_each(lot, num_worlds=num_worlds, seed=seed, known=known)
        known = [*known[:1], outcome]  # readings that come to the same stand side by side
        device_hours = float(outcome.device_hours.mean())
        base_h = device_hours if number == 0 else base_h
        saved = None if base_h is None else base_h - device_hours
        found.append(AnsweredQuestion(answer, safety_of(outcome), saved))
    return tuple(found)
