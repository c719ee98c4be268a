"""Counts, bytes, durations and percentages as text."""

import math

HAIR = 1e-9
"""Added before rounding: more than float error, less than any digit shown."""


def count_text(count: float) -> str:
    """Return `42.0 M` for 42_000_000; all digits below ten thousand, three significant ones from 1e18."""
    if abs(count) >= 1e18:
        return f"{count:.3g}"
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(count) >= size:
            return f"{count / (1e3 if suffix == 'k' else size):.1f} {suffix}"
    return f"{count:,.0f}"


def number_of(count: int, one: str, many: str = "") -> str:
    """Return `1 week` or `2 weeks`; `many` is the plural if it is not `one` + s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def bytes_text(num_bytes: float) -> str:
    """Return `1.5 MB` for 1_500_000 (decimal units, as disks and object stores are sold)."""
    for size, suffix in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {suffix}"
    return f"{num_bytes:.0f} B"


def duration_text(seconds: float) -> str:
    """Return `1 h 02 min` for 3_725, `1 min 15 s` for 75, `0.25 s` for 0.25."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    # Rounded first: 119.6 s are two minutes, not one and 60 seconds.
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def days_text(days: float) -> str:
    """Return `41.6 days` for 41.63; below one day, a duration in hours or less."""
    return duration_text(days * 86_400.0) if days < 1.0 else f"{days:,.1f} days"


def age_text(seconds: float) -> str:
    """Return an age to one unit: `3 min` for 200, `25 h` for 90_000, `2 d` for 200_000."""
    for size, unit, least in ((86400, "d", 48 * 3600), (3600, "h", 3600), (60, "min", 60)):
        if seconds >= least:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def tenths_text(share: float) -> str:
    """Return a share as `24.7%`; halves round away from zero, as decimals do: 0.2465, as a float just below, too."""
    return f"{100 * share + math.copysign(HAIR, share):.1f}%"


def percent_text(share: float) -> str:
    """Return a share as `93.4%` or `50%`; `>99.9%` and `<0.1%` for shares that would round to 100% or 0%."""
    shown = tenths_text(share)
    if shown in ("0.0%", "-0.0%") and share != 0:
        return "<0.1%" if share > 0 else ">-0.1%"
    return ">99.9%" if shown == "100.0%" and share < 1 else shown.replace(".0%", "%")


def sampled_percent_text(share: float, count: int) -> str:
    """Return the percentage of `count` samples; none of 2,048 is `<0.2%` and all are `>99.8%`.

    The bound is the rule of three (95% confidence: 3 / count), rounded up to tenths of a percent.
    """
    if 0 < share < 1:
        return percent_text(share)
    bound = math.ceil(3000 / count) / 10
    return f"<{bound:g}%" if share <= 0 else f">{100 - bound:g}%"


def power_text(value: float, *, digits: int = 3) -> str:
    """Return `1.3e22` for 1.30e+22 and `244` for 243.95: significant digits, exponents without a plus."""
    return f"{value:.{digits}g}".replace("e+", "e").replace("e0", "e").replace("e-0", "e-")
