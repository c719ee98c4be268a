"""A guard: a combination of factors that runs avoid, found by a diagnosis and accepted by a person."""

from pydantic import NonNegativeFloat

from assay.base.names import Name
from assay.records.fix_check import FixCheck
from assay.records.record import Record


class Guard(Record):
    """An accepted cause; matching runs are warned or refused."""

    name: Name
    factors: dict[str, str]
    """A run matches if all hold."""
    is_refusing: bool
    accepted_s: float
    accepted_by: str
    rate: NonNegativeFloat
    elsewhere_rate: NonNegativeFloat
    diagnosis_sha256: str


class GuardStatus(Record):
    """A guard and the attempts since."""

    guard: Guard
    has_lapsed: bool
    """The cause is fixed."""
    since: FixCheck | None
    """Attempts before and after acceptance."""
