"""Diagnoses that nobody made: what blamed something, for who stands on that."""

from assay.records.failure_causes import FailureCause, FailureDiagnosis
from assay.records.statement import Statement


def cause(factors: dict[str, str], *, is_confirmed: bool = True) -> FailureCause:
    return FailureCause(
        factors=factors, is_confirmed=is_confirmed, p_value=0.005, attempts=50, failures=20, units=12,
        rate=0.4, rate_low=0.27, rate_high=0.55, elsewhere_rate=0.04, adjusted_ratio=None, adjusted_low=None,
        adjusted_high=None, adjustments=(), share_of_excess=0.9, evidence=20.0, ties=(), is_inseparable=False,
        lost_device_hours=3.0, next=Statement(code="no failure"),
    )  # fmt: skip


def diagnosis(*causes: FailureCause) -> FailureDiagnosis:
    return FailureDiagnosis(
        verdict="cause" if causes else "nothing", because=Statement(code="no failure"),
        p_value=0.005, attempts=400, failures=34, rate=0.085,
        baseline_rate=None, units=80, unit_correlation=0.0, causes=causes, ruled_out=(),
        left_out={}, sources={},
    )  # fmt: skip
