"""Overview of what costs device time over all runs, from all triage analyses."""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt

from assay.records.failure_causes import FailureCause
from assay.records.phase import Phase
from assay.records.record import Record
from assay.records.slow_changes import SlowChange
from assay.records.statement import Statement
from assay.records.symptoms import RecordedSymptom


class Finding(Record):
    """What cost device time, with its evidence: a cause, a symptom, a level change, or a phase."""

    about: Literal["failures", "slower", "spent"]
    """`spent`: device time that produced no steps."""
    is_confirmed: bool
    """The cause is shown by the records, not only suspected. False of a symptom, whose cause is unknown."""
    device_hours_a_week: NonNegativeFloat | None
    """A failure costs work lost, hangs and the restart, as in `Interruption`. Total if less than a week is recorded."""
    cause: FailureCause | None = None
    """What the failed attempts share."""
    symptom: RecordedSymptom | None = None
    """The last of `attempts` that failed alike, without a known cause; null if each failed in a way of its own."""
    attempts: NonNegativeInt = 0
    change: SlowChange | None = None
    phase: Phase | None = None
    """Where the time went."""
    share: NonNegativeFloat = 0.0
    """Share of all device time, in `phase`."""


class TriageOverview(Record):
    """Causes of device time without steps, most expensive first."""

    run_ids: tuple[str, ...] = ()
    """Each run that was looked at, if they are few or were selected; `assay runs show RUN` says what happened to it."""
    runs: NonNegativeInt
    attempts: NonNegativeInt
    """Ended, not preempted."""
    failures: NonNegativeInt
    days: NonNegativeFloat
    """First start to last end."""
    device_hours: NonNegativeFloat
    results: tuple[Finding, ...]
    not_looked_at: dict[str, Statement]
    """Check to the reason."""

    @property
    def is_of_weeks(self) -> bool:
        """Return whether the records cover at least a week."""
        return self.days >= 7.0
