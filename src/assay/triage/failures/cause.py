"""Builds the record of a cause: a region's rates with intervals, its cost, and the next step."""

from typing import NamedTuple

import numpy as np
from scipy.special import betaincinv, gammaincinv

from assay.base.shapes import Bool, Float64
from assay.records.failure_causes import AdjustedRatio, FailureCause
from assay.triage.attempts.table import AttemptTable
from assay.triage.failures.scan import Region, Scan

TAIL = 0.025
SEPARATING_ATTEMPTS = 3.0
"""Expected failures after which a run without failures clears a side (95%)."""


class Ties(NamedTuple):
    """Regions that cannot be distinguished from a region."""

    factors: list[dict[str, str]]
    is_inseparable: bool
    """Whether one of them has exactly the same attempts."""


def region_factors(table: AttemptTable, region: Region) -> dict[str, str]:
    """Return factor -> value of a region."""
    return {
        table.factors[index].name: table.factors[index].values[value]
        for index, value in zip(region.factors, region.values, strict=True)
    }


def region_rates(table: AttemptTable, inside: Bool[np.ndarray, "row"]) -> tuple[float, float]:
    """Return the failure rates inside and outside."""
    size = table.size()
    return tuple(  # type: ignore[return-value]
        float(table.failures[side].sum()) / max(float(size[side].sum()), 1e-12) for side in (inside, ~inside)
    )


def cause_of(
    table: AttemptTable,
    region: Region,
    ratios: tuple[AdjustedRatio, ...],
    ties: Ties,
    found: Scan,
    *,
    is_confirmed: bool,
) -> FailureCause:
    """Build the record."""
    inside = np.zeros(table.num_rows, bool)
    inside[region.rows] = True
    rate, elsewhere = region_rates(table, inside)
    low, high = _interval(table, inside, found.weights)
    adjusted = ratios[-1] if len(ratios) > 1 else None
    factors = region_factors(table, region)
    return FailureCause(
        factors=factors,
        is_confirmed=is_confirmed,
        p_value=found.p_value(region.score),
        attempts=int(table.attempts[inside].sum()),
        failures=int(table.failures[inside].sum()),
        units=len(np.unique(table.units[inside])),
        rate=rate,
        rate_low=low,
        rate_high=high,
        elsewhere_rate=elsewhere,
        adjusted_ratio=None if adjusted is None else adjusted.ratio,
        adjusted_low=None if adjusted is None else adjusted.low,
        adjusted_high=None if adjusted is None else adjusted.high,
        adjustments=ratios,
        share_of_excess=min(max(region.share, 0.0), 1.0),
        evidence=region.llr,
        ties=tuple(ties.factors),
        is_inseparable=ties.is_inseparable,
        lost_device_hours=_lost_device_hours(table, inside, rate, elsewhere),
        next=_next(table, factors, ties, rate),
    )


def _interval(
    table: AttemptTable, inside: Bool[np.ndarray, "row"], weights: Float64[np.ndarray, "row"]
) -> tuple[float, float]:
    """Return the 95% interval at the effective number of attempts: Clopper & Pearson's, or Garwood's for a
    rate per exposure."""
    size = float((table.size() * weights)[inside].sum())
    failed = float((table.failures * weights)[inside].sum())
    if table.exposure is not None:
        low = float(gammaincinv(failed, TAIL)) / size if failed > 0 else 0.0
        return low, float(gammaincinv(failed + 1.0, 1.0 - TAIL)) / size
    passed = max(size - failed, 0.0)
    low = float(betaincinv(failed, passed + 1.0, TAIL)) if failed > 0 else 0.0
    return low, float(betaincinv(failed + 1.0, passed, 1.0 - TAIL)) if passed > 0 else 1.0


def _lost_device_hours(
    table: AttemptTable, inside: Bool[np.ndarray, "row"], rate: float, elsewhere: float
) -> float | None:
    if table.device_hours is None or rate <= 0:
        return None
    failed = float((table.device_hours * table.failures / table.attempts)[inside].sum())
    return failed * max(1.0 - elsewhere / rate, 0.0)


def _next(table: AttemptTable, factors: dict[str, str], ties: Ties, rate: float) -> str:
    """Return the cheapest experiment that separates the ties, or else one that confirms the fix."""
    number = max(int(np.ceil(SEPARATING_ATTEMPTS / max(min(rate, 1.0), 1e-3))), 1)
    price = ""
    if table.device_hours is not None:
        hours = number * float(np.median(table.device_hours / table.attempts))
        price = f", about {hours:.3g} device-hours"
    if ties.is_inseparable:
        other = ties.factors[0]
        apart = {name: value for name, value in factors.items() if other.get(name) != value}
        return (
            f"run {number} attempts with {_text(apart)} and without {_text(_without(other, factors))}: if "
            f"none fails, it is not the former{price}"
        )
    return f"mend or avoid {_text(factors)}, then ask 'assay triage fixed': {number} attempts{price}"


def _without(other: dict[str, str], factors: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in other.items() if factors.get(name) != value}


def _text(factors: dict[str, str]) -> str:
    return " + ".join(f"{name}={value}" for name, value in factors.items())
