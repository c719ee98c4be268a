"""Recommends an action for a running program: scale, review, narrow or stop.

verdicts of the gates ----+
stop conditions raised ---+-->  the most severe action; status and review show the same one
alarms to act on ---------+     (whether anybody must act now)
"""

from typing import Literal, NamedTuple

from assay.planning.program.program import Program
from assay.planning.program.progress import Progress, called_off
from assay.planning.simulation.forecast import Alarm, ProgramEstimate

Action = Literal["scale", "review", "narrow", "stop"]

_GRAVITY = ("scale", "review", "narrow", "stop")
"""In ascending order; below all of them is waiting for the gates."""


class RecommendedAction(NamedTuple):
    """The recommended action and its sources."""

    word: Action | None
    """None: a gate is open, and no stop condition applies."""
    by_gates: Literal["scale", "narrow", "stop"] | None
    """By the gates' verdicts alone; None while one is open."""
    raised: tuple[Alarm, ...]
    """Stop conditions that require action."""
    must_act: tuple[Alarm, ...]
    """All alarms that require action, including these."""


def recommended_action(found: ProgramEstimate) -> RecommendedAction:
    """Return the recommended action at the forecast's moment."""
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
    """Return the action by the gates' verdicts; None while one is open."""
    last = {name: verdicts[-1] for name, verdicts in progress.verdicts.items() if verdicts}
    if "stop" in last.values():
        return "stop"
    if set(last) != set(program.gates) or "again" in last.values():
        return None
    return "narrow" if "narrow" in last.values() else "scale"


def left_to_do(program: Program, progress: Progress) -> list[str]:
    """Return the names of what is neither over nor called off; empty after the decision."""
    over = {name for name, actual in progress.activities.items() if actual.ended is not None}
    over |= {name for name, verdicts in progress.verdicts.items() if verdicts and verdicts[-1] != "again"}
    if program.decision.decided_by in over:
        return []
    off = called_off(program, progress)
    return [name for name in program.nodes() if name not in over | off]
