"""What runs are kept from: a combination that a diagnosis blamed and a person accepted."""

from pydantic import NonNegativeFloat

from assay.base.names import Name
from assay.records.fix_check import FixCheck
from assay.records.record import Record


class Guard(Record):
    """An accepted cause of failures: runs that land on it are warned of, or refused."""

    name: Name
    """What lifts it: by default its factors, `host=n12`."""
    factors: dict[str, str]
    """Factor -> the value to stay away from; a run lands on it where all of them hold."""
    is_refusing: bool
    """Whether such a run is not begun; else it is warned of."""
    accepted_s: float
    """When, seconds since the Unix epoch; whether it was mended is asked of attempts from then on."""
    accepted_by: str
    """The user's name."""
    rate: NonNegativeFloat
    """Share of attempts on it that failed, when it was diagnosed."""
    elsewhere_rate: NonNegativeFloat
    """Likewise, of all others."""
    diagnosis_sha256: str
    """The digest of the diagnosis."""


class GuardStanding(Record):
    """A guard, and what attempts since then say of it."""

    guard: Guard
    has_lapsed: bool
    """Whether the attempts on it say that it was mended: it keeps no run any more."""
    since: FixCheck | None
    """The attempts on it before and since; None where no attempt on record is on it."""
