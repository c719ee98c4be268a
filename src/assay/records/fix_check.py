"""Whether attempts fail less often since something was mended, valid however often it is asked."""

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from assay.records.record import Record
from assay.records.statement import Statement


class FixCheck(Record):
    """Attempts before and after a fix."""

    verdict: Literal["fixed", "worse", "undecided"]
    because: Statement
    decided_after: PositiveInt | None
    """Attempts until the decision."""
    e_value: float
    """Evidence for a lower rate; 20 is fixed."""
    worse_e_value: float
    """Evidence for a higher rate."""
    baseline_rate: float | None
    baseline_low: float
    baseline_high: float
    baseline_attempts: NonNegativeInt
    rate: float | None
    attempts: NonNegativeInt
    failures: NonNegativeInt
    more_attempts: NonNegativeInt | None
    """Those without failure that would decide it."""
    unit_correlation: float
    sources: dict[str, str]
