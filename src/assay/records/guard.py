"""A guard: a combination of factors that runs avoid, found by a diagnosis and accepted by a person."""

from pydantic import NonNegativeFloat

from assay.base.names import Name
from assay.records.fix_check import FixCheck
from assay.records.record import Record


class Guard(Record):
    """An accepted cause of failures; matching runs are warned or rejected."""

    name: Name
    factors: dict[str, str]
    """A run matches if all hold."""
    is_refusing: bool
    accepted_s: float
    """When it was accepted."""
    accepted_by: str
    rate: NonNegativeFloat
    """Share of matching attempts that failed."""
    elsewhere_rate: NonNegativeFloat
    """Failure rate of all others."""
    diagnosis_sha256: str


class GuardStatus(Record):
    """A guard and the attempts since."""

    guard: Guard
    has_lapsed: bool
    """The cause is fixed, so it no longer applies."""
    since: FixCheck | None
    """Attempts before and after acceptance."""
