"""Numbers of a decision as a person says them: effects in points, device time in hours, chances in percent."""

import math

from assay.base.units import duration_text
from assay.records.decision import MoreEvidence
from assay.records.evaluation import Estimate

_IN_POINTS = ("share", "AUC")

LEAST_CHANCE = 0.005
"""What is below it is told as `under 1%`; a cure with such a chance is none."""


NO_EVIDENCE = "not more seeds or items"
"""How a cure begins that is none of more evidence."""


def effect_text(value: float, unit: str, *, signed: bool = True) -> str:
    """`0.0123` of a share -> `+1.23 points`; other units as they are: `+0.0123 nats per row`."""
    if unit in _IN_POINTS:
        return f"{_number(100 * value, '.2f', signed)} points" + (" of AUC" if unit == "AUC" else "")
    return f"{_number(value, '.4f', signed)} {unit}"


def is_beyond(effect: float, unit: str) -> bool:
    """Whether it is as large as a share itself: no gain is, and a margin of it asks for nothing."""
    return unit in _IN_POINTS and effect >= 1.0


def detectable_text(effect: float, unit: str) -> str:
    """The least effect that a design finds."""
    if is_beyond(effect, unit):
        return "none that a share can have"
    return effect_text(effect, unit, signed=False)


def side_text(harm: float, unit: str) -> str:
    """`0.61 points better` of a harm below 0, `1.20 points worse` of one above it."""
    if not math.isfinite(harm):
        return "nobody knows how much"
    shown = effect_text(abs(harm), unit, signed=False)
    if not shown.partition(" ")[0].strip("0."):
        return "as good"
    return f"{shown} {'worse' if harm > 0.0 else 'better'}"


def bound_text(value: float, unit: str) -> str:
    """A threshold as it was declared: `0.015` of a share -> `1.5 points`, `0.02` -> `0.02 nats per row`."""
    if unit in _IN_POINTS:
        number = f"{100 * value:.4g}"
        return f"{number} point{'' if number == '1' else 's'}" + (" of AUC" if unit == "AUC" else "")
    return f"{value:.4g} {unit}"


def interval_words(estimate: Estimate, unit: str) -> str:
    """`+1.23 points [95%: +0.40 to +2.06]`."""
    if estimate.low is None or estimate.high is None:
        return f"{effect_text(estimate.value, unit)} (no interval)"
    scale, digits = (100.0, ".2f") if unit in _IN_POINTS else (1.0, ".4f")
    ends = " to ".join(_number(scale * end, digits, True) for end in (estimate.low, estimate.high))
    return f"{effect_text(estimate.value, unit)} [{100 * estimate.confidence:.3g}%: {ends}]"


def chance_text(chance: float) -> str:
    """`0.873` -> `87%`; never 0% or 100% for what is neither."""
    if 0.0 < chance < LEAST_CHANCE:
        return "under 1%"
    return "over 99%" if 0.995 <= chance < 1.0 else f"{100 * chance:.0f}%"


def would_help(more: MoreEvidence) -> bool:
    """Whether it may turn a clause, or answer either way: what surely does not is no cure."""
    known = [chance for chance in (more.probability, more.decision_probability) if chance is not None]
    return not known or max(known) >= LEAST_CHANCE


def chances_text(more: MoreEvidence) -> list[str]:
    """`["over 99% to pass"]`; of a new campaign, `["81% to decide either way", "35% to pass"]`."""
    chances = {"to decide either way": more.decision_probability, "to pass": more.probability}
    return [f"{chance_text(chance)} {what}" for what, chance in chances.items() if chance is not None]


def rate_text(rate: float) -> str:
    """`0.00513` -> `0.51%`."""
    return f"{100 * rate:.2g}%"


def device_time_text(seconds: float) -> str:
    """`7_200` -> `2 device-hours`; below an hour as a duration: `12 min 30 s of device time`."""
    if seconds >= 3600:
        hours = f"{seconds / 3600:,.4g}"
        return f"{hours} device-hour{'' if hours == '1' else 's'}"
    return f"{duration_text(seconds)} of device time"


def _number(value: float, digits: str, signed: bool) -> str:
    """Without a sign where it is shown as zero."""
    shown = format(value, f"{'+' if signed else ''}{digits}")
    return shown.lstrip("+-") if not shown.strip("+-0.") else shown
