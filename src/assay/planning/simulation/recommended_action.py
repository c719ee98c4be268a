"""What to do about a running program: scale, review, narrow or stop, as its gates and stop conditions add up.

verdicts of the gates ----+
stop conditions raised ---+-->  the gravest of what they ask for; the status and the review both say this one
alarms to act on ---------+     (whether anybody must act now)
"""

from typing import Literal, NamedTuple

from assay.planning.program.program import Program
from assay.planning.program.progress import Progress, called_off
from assay.planning.simulation.forecast import Alarm, ProgramForecast

Action = Literal["scale", "review", "narrow", "stop"]

_GRAVITY = ("scale", "review", "narrow", "stop")
"""Ascending; below them all is to wait for the gates."""


class RecommendedAction(NamedTuple):
    """What is asked for, and by whom."""

    word: Action | None
    """None: a gate is open, and no stop condition asks for anything."""
    by_gates: Literal["scale", "narrow", "stop"] | None
    """What the gates alone add up to; None while one is open."""
    raised: tuple[Alarm, ...]
    """Stop conditions that are to be acted on."""
    must_act: tuple[Alarm, ...]
    """All alarms that are, those among them; where there is none, nobody must."""


def recommended_action(found: ProgramForecast) -> RecommendedAction:
    """What to do, by what is known as of the forecast's moment."""
    must_act = tuple(alarm for alarm in found.alarms if alarm.level == "act")
    raised = tuple(alarm for alarm in must_act if alarm.then is not None)
    by_gates = recommended(found.program, found.progress)
    candidates = [by_gates, *(alarm.then for alarm in raised)]
    return RecommendedAction(
        max((candidate for candidate in candidates if candidate is not None), key=_GRAVITY.index, default=None),
        by_gates,
        raised,
        must_act,
    )


def recommended(program: Program, progress: Progress) -> Literal["scale", "narrow", "stop"] | None:
    """As the gates' verdicts add up; None while they are open."""
    last = {name: verdicts[-1] for name, verdicts in progress.verdicts.items() if verdicts}
    if "stop" in last.values():
        return "stop"
    if set(last) != set(program.gates) or "again" in last.values():
        return None
    return "narrow" if "narrow" in last.values() else "scale"


def left_to_do(program: Program, progress: Progress) -> list[str]:
    """What is neither over nor called off, by name; nothing once what makes the decision has ended."""
    over = {name for name, actual in progress.activities.items() if actual.ended is not None}
    over |= {name for name, verdicts in progress.verdicts.items() if verdicts and verdicts[-1] != "again"}
    if program.decision.decided_by in over:
        return []
    off = called_off(program, progress)
    return [name for name in program.nodes() if name not in over | off]
