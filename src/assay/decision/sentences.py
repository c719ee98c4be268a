"""Text for a decision's numbers: effects in points, device time in hours, probabilities in percent."""

import math

from assay.base.units import duration_text
from assay.records.decision import MoreEvidence
from assay.records.evaluation import Estimate

_IN_POINTS = ("share", "AUC")

LEAST_CHANCE = 0.005
"""Smaller probabilities are shown as `under 1%`, and do not count as a fix."""


NO_EVIDENCE = "not more seeds or items"
"""Start of a proposed fix that is neither more seeds nor more items."""


def effect_text(value: float, unit: str, *, signed: bool = True) -> str:
    """`0.0123` of a share -> `+1.23 points`; other units as they are: `+0.0123 nats per row`."""
    if unit in _IN_POINTS:
        return f"{_number(100 * value, '.2f', signed)} points" + (" of AUC" if unit == "AUC" else "")
    return f"{_number(value, '.4f', signed)} {unit}"


def is_beyond(effect: float, unit: str) -> bool:
    """Return whether an effect is as large as a whole share, so no gain reaches it."""
    return unit in _IN_POINTS and effect >= 1.0


def detectable_text(effect: float, unit: str) -> str:
    """Return the least effect that a design detects."""
    if is_beyond(effect, unit):
        return "none that a share can have"
    return effect_text(effect, unit, signed=False)


def side_text(harm: float, unit: str) -> str:
    """`0.61 points better` for a harm below 0, `1.20 points worse` for one above it."""
    if not math.isfinite(harm):
        return "unknown"
    shown = effect_text(abs(harm), unit, signed=False)
    if not shown.partition(" ")[0].strip("0."):
        return "as good"
    return f"{shown} {'worse' if harm > 0.0 else 'better'}"


def bound_text(value: float, unit: str) -> str:
    """A threshold as declared: `0.015` of a share -> `1.5 points`, `0.02` -> `0.02 nats per row`."""
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
    """`0.873` -> `87%`; 0% and 100% only for exact values."""
    if 0.0 < chance < LEAST_CHANCE:
        return "under 1%"
    return "over 99%" if 0.995 <= chance < 1.0 else f"{100 * chance:.0f}%"


def would_help(more: MoreEvidence) -> bool:
    """Return whether more evidence may turn a clause or lead to a decision."""
    known = [chance for chance in (more.probability, more.decision_probability) if chance is not None]
    return not known or max(known) >= LEAST_CHANCE


def chances_text(more: MoreEvidence) -> list[str]:
    """`["over 99% to pass"]`; for a new campaign, `["81% to decide either way", "35% to pass"]`."""
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
    """Format a number; zero has no sign."""
    shown = format(value, f"{'+' if signed else ''}{digits}")
    return shown.lstrip("+-") if not shown.strip("+-0.") else shown
