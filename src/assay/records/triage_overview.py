"""Overview of what costs device time over all runs, from all triage analyses."""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt

from assay.records.record import Record


class Finding(Record):
    """A cause of lost device time."""

    about: Literal["failures", "slower", "spent"]
    """`spent`: device time that produced no steps."""
    what: str
    is_confirmed: bool
    """Shown by the records, not only suspected."""
    device_hours_a_week: NonNegativeFloat | None
    """Total if less than a week is recorded."""
    next: str


class TriageOverview(Record):
    """Causes of lost device time, most expensive first."""

    runs: NonNegativeInt
    attempts: NonNegativeInt
    """Ended, not preempted."""
    failures: NonNegativeInt
    days: NonNegativeFloat
    """First start to last end."""
    device_hours: NonNegativeFloat
    results: tuple[Finding, ...]
    not_looked_at: dict[str, str]
    """Check to the reason."""

    @property
    def is_of_weeks(self) -> bool:
        """Return whether the records cover at least a week."""
        return self.days >= 7.0
