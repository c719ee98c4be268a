"""The actual state of a running program, from which re-planning starts."""

from typing import Any, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, field_validator, model_validator

from assay.base.config import FrozenConfig
from assay.planning.program.calendar import Moment
from assay.planning.program.program import Program
from assay.planning.program.work import Verdict
from assay.records.record import Record


class RunActual(FrozenConfig):
    """One run of an activity, from the ledger."""

    run_id: str
    started: Moment
    ended: Moment | None = None
    """None while it runs."""

    device_hours: NonNegativeFloat
    """Held so far, over all attempts."""

    device_hours_lost: NonNegativeFloat = 0.0
    """Device-hours of work that was rolled back and repeated."""

    device_hours_by_phase: dict[str, NonNegativeFloat] = Field(default_factory=dict)
    """Device-hours by phase: compute, data, lost, ...; `unreported` is what no rank has reported yet."""

    num_attempts: PositiveInt = 1
    num_failed: NonNegativeInt = 0
    """Attempts that were killed or failed."""


class Actual(FrozenConfig):
    """An activity or a gate that has started."""

    started: Moment
    ended: Moment | None = None
    """None while it continues."""

    expected_end: Moment | None = None
    """Expected end of what continues. Null: start plus planned duration, or if that has passed, 5% more than
    its time so far."""

    device_hours: NonNegativeFloat | None = None
    """Spent so far; null: what was planned until now."""

    device_hours_to_come: NonNegativeFloat | None = None
    """What continuing runs will still spend, 0 for nothing; null: planned minus spent."""

    runs: tuple[RunActual, ...] = ()
    """The runs from the ledger, in order of start."""

    @model_validator(mode="after")
    def _over_or_not(self) -> Self:
        if self.ended is not None and (self.expected_end is not None or self.device_hours_to_come):
            raise ValueError("it has ended: nothing of it is to come")
        return self


class Progress(Record):
    """The state of a running program."""

    now: Moment
    activities: dict[str, Actual] = Field(default_factory=dict)
    """Started activities and gates by name; others have not started."""

    events: dict[str, Moment] = Field(default_factory=dict)
    """Actual times of external events. An event that is absent after its date is still awaited; a future time
    is the current expectation."""

    verdicts: dict[str, tuple[Verdict, ...]] = Field(default_factory=dict)
    """Gate -> its verdicts, look by look."""

    @field_validator("verdicts", mode="before")
    @classmethod
    def _one_look(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: (verdict,) if isinstance(verdict, str) else verdict for name, verdict in value.items()}
        return value


def called_off(program: Program, progress: Progress) -> set[str]:
    """Return the names that the gates have called off: dropped by `narrow`, or not listed after a stop."""
    off: set[str] = set()
    for name in progress.verdicts.keys() & program.gates.keys():
        gate, verdicts = program.gates[name], progress.verdicts[name]
        off |= set(gate.narrow.drops) if "narrow" in verdicts else set()
        off |= program.nodes().keys() - set(gate.stop_goes_to) if "stop" in verdicts else set()
    return off - progress.activities.keys()
