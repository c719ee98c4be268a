"""What to look at first: what costs device time over all runs, from every question that triage asks."""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt

from assay.records.record import Record


class Finding(Record):
    """One thing that costs device time."""

    about: Literal["failures", "slower", "spent"]
    """`failures`: attempts that fail for a reason; `slower`: steps take longer than they did; `spent`: device
    time that no step was made of."""
    what: str
    """In a sentence."""
    is_confirmed: bool
    """Whether the record shows it; else it is the next to suspect. What time was `spent` on is measured."""
    device_hours_a_week: NonNegativeFloat | None
    """What it costs, as a mean over the weeks on record; all that it cost where less than a week is. None where
    that is not on record."""
    next: str
    """The command, or the deed, that comes next."""


class TriageFindings(Record):
    """All findings: failures without a known cause, then confirmed before suspected, the dearest first."""

    runs: NonNegativeInt
    """Without drills."""
    attempts: NonNegativeInt
    """That are over, and were not preempted."""
    failures: NonNegativeInt
    """Those among them that failed."""
    days: NonNegativeFloat
    """From the first attempt's start to the last one's end."""
    device_hours: NonNegativeFloat
    """Held by all attempts, as `assay goodput` counts them."""
    findings: tuple[Finding, ...]
    not_looked_at: dict[str, str]
    """Question -> why it could not be asked of this record."""

    @property
    def is_of_weeks(self) -> bool:
        """Whether enough is on record for a loss a week."""
        return self.days >= 7.0
