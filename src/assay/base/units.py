"""Numbers as a person writes them."""

import math

HAIR = 1e-9
"""A part of a percent: more than a float's last bits, and nothing to a reader."""


def count_text(count: float) -> str:
    """`42_000_000` -> `42.0 M`; below ten thousand, all digits; from 1e18 on, none but three."""
    if abs(count) >= 1e18:
        return f"{count:.3g}"
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(count) >= size:
            return f"{count / (1e3 if suffix == 'k' else size):.1f} {suffix}"
    return f"{count:,.0f}"


def number_of(count: int, one: str, many: str = "") -> str:
    """`1 week`, `2 weeks`; `many` where an s is not enough."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def bytes_text(num_bytes: float) -> str:
    """`1_500_000` -> `1.5 MB` (decimal units, as disks and object stores are sold)."""
    for size, suffix in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {suffix}"
    return f"{num_bytes:.0f} B"


def duration_text(seconds: float) -> str:
    """`3_725` -> `1 h 02 min`; `75` -> `1 min 15 s`; `0.25` -> `0.25 s`."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    # Rounded first: 119.6 s are two minutes, not one and 60 seconds.
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def days_text(days: float) -> str:
    """`41.63` -> `41.6 days`; below a day as a duration."""
    return duration_text(days * 86_400.0) if days < 1.0 else f"{days:,.1f} days"


def age_text(seconds: float) -> str:
    """`200` -> `3 min`; `90_000` -> `25 h`; `200_000` -> `2 d`: as far as one wants to know it."""
    for size, unit, least in ((86400, "d", 48 * 3600), (3600, "h", 3600), (60, "min", 60)):
        if seconds >= least:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def tenths_text(share: float) -> str:
    """`24.7%`, `50.0%`: for columns of shares; halves away from zero, as a decimal.

    0.2465 is 24.7%: as a float it lies a hair below its half, which is no reason to cut it.
    """
    return f"{100 * share + math.copysign(HAIR, share):.1f}%"


def percent_text(share: float) -> str:
    """`93.4%`, `50%`; never 100% for what is less, nor 0% for what is more: `>99.9%`, `<0.1%`, `>-0.1%`."""
    shown = tenths_text(share)
    if shown in ("0.0%", "-0.0%") and share != 0:
        return "<0.1%" if share > 0 else ">-0.1%"
    return ">99.9%" if shown == "100.0%" and share < 1 else shown.replace(".0%", "%")


def sampled_percent_text(share: float, count: int) -> str:
    """Likewise, of so many that were drawn: where none of 2,048 was seen, `<0.2%`, and of all `>99.8%`.

    The bound is what 95% of such draws would have shown one of (three in `count`), in tenths of a percent.
    """
    if 0 < share < 1:
        return percent_text(share)
    bound = math.ceil(3000 / count) / 10
    return f"<{bound:g}%" if share <= 0 else f">{100 - bound:g}%"


def power_text(value: float, *, digits: int = 3) -> str:
    """`1.3e22` for 1.30e+22; `244` for 243.95: significant digits, exponents without a plus."""
    return f"{value:.{digits}g}".replace("e+", "e").replace("e0", "e").replace("e-0", "e-")
