"""Causes of failing attempts, with their certainty and the factors that cannot be distinguished.

A *factor* is something that attempts differ in (a host, an image, a key of the recipe); a *region* is all
attempts that share the values of one to three factors. A cause is a region that fails more often than luck,
the likeness of attempts of one unit, the other factors and the hour account for."""

from typing import Literal

from pydantic import NonNegativeInt

from assay.records.record import Record
from assay.records.statement import Statement

FailureVerdict = Literal["cause", "several", "unidentifiable", "nothing"]


class AdjustedRatio(Record):
    """A failure-rate ratio within strata."""

    within: tuple[str, ...]
    ratio: float
    """Mantel-Haenszel."""
    low: float
    high: float


class FailureCause(Record):
    """A region with too many failures."""

    factors: dict[str, str]
    is_confirmed: bool
    """Significant at 5%, and no other factor or moment may be at fault instead."""
    p_value: float
    """Tests the whole scan."""
    attempts: NonNegativeInt
    failures: NonNegativeInt
    units: NonNegativeInt
    rate: float
    rate_low: float
    rate_high: float
    elsewhere_rate: float
    """Outside the region."""
    adjusted_ratio: float | None
    """Failure rate over that of similar attempts outside."""
    adjusted_low: float | None
    adjusted_high: float | None
    adjustments: tuple[AdjustedRatio, ...]
    """Unadjusted, for other factors, for time; within what may be at fault instead."""
    share_of_excess: float
    """Share of excess failures explained."""
    evidence: float
    """Log likelihood ratio."""
    ties: tuple[dict[str, str], ...]
    """Regions with similar evidence."""
    is_inseparable: bool
    """A tie always occurs with it."""
    lost_device_hours: float | None
    """Cost of its failures beyond the rate elsewhere: work lost, hangs and restarts; of a table, all that they held."""
    next: Statement
    """The cheapest experiment that separates ties or a rival, or else confirms a fix."""


class RuledOut(Record):
    """A region that is no cause."""

    factors: dict[str, str]
    attempts: NonNegativeInt
    failures: NonNegativeInt
    rate: float
    elsewhere_rate: float
    adjustments: tuple[AdjustedRatio, ...]
    because: Statement


class FailureDiagnosis(Record):
    """Why attempts fail."""

    verdict: FailureVerdict
    """`unidentifiable`: these attempts cannot separate the causes."""
    because: Statement
    p_value: float | None
    """Tests the scan against no cause."""
    attempts: NonNegativeInt
    """Scanned."""
    failures: NonNegativeInt
    rate: float
    """Per attempt, or per unit of `--exposure`."""
    baseline_rate: float | None
    units: NonNegativeInt
    unit_correlation: float
    """For outcomes within a unit."""
    causes: tuple[FailureCause, ...]
    """Confirmed first."""
    ruled_out: tuple[RuledOut, ...]
    """Regions explained by other factors or time."""
    left_out: dict[str, Statement]
    """Factor to the reason."""
    sources: dict[str, str]
