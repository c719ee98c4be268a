"""What really happened so far: where re-planning starts from."""

from typing import Any, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, field_validator, model_validator

from assay.base.config import FrozenConfig
from assay.planning.program.calendar import Moment
from assay.planning.program.program import Program
from assay.planning.program.work import Verdict
from assay.records.record import Record


class RunActual(FrozenConfig):
    """One run of an activity, as the ledger knows it."""

    run_id: str
    started: Moment
    ended: Moment | None = None
    """None while it goes on."""

    device_hours: NonNegativeFloat
    """Held so far, over all attempts."""

    device_hours_lost: NonNegativeFloat = 0.0
    """The part of them that was rolled back: work that was done twice."""

    device_hours_by_phase: dict[str, NonNegativeFloat] = Field(default_factory=dict)
    """What they were held for: compute, data, lost ...; `unreported` is what no rank has told of yet."""

    num_attempts: PositiveInt = 1
    num_failed: NonNegativeInt = 0
    """Attempts that were killed or failed."""


class Actual(FrozenConfig):
    """An activity or a gate that has begun."""

    started: Moment
    ended: Moment | None = None
    """None while it goes on."""

    expected_end: Moment | None = None
    """When what goes on is expected to end; None: as long after its start as was planned, or where that is
    past, after a twentieth more of the time that it has taken."""

    device_hours: NonNegativeFloat | None = None
    """Spent so far; None where nobody noted it: then what was planned until now counts."""

    device_hours_to_come: NonNegativeFloat | None = None
    """What runs that go on will still spend, 0 for nothing; None: what was planned, less what is spent."""

    runs: tuple[RunActual, ...] = ()
    """Each run by itself, where the ledger knows them; in the order in which they began."""

    @model_validator(mode="after")
    def _over_or_not(self) -> Self:
        if self.ended is not None and (self.expected_end is not None or self.device_hours_to_come):
            raise ValueError("it has ended: nothing of it is to come")
        return self


class Progress(Record):
    """The state of a running program."""

    now: Moment
    activities: dict[str, Actual] = Field(default_factory=dict)
    """What has begun, activities and gates by name; what is absent has not."""

    events: dict[str, Moment] = Field(default_factory=dict)
    """When events from outside really came; one whose date has passed and that is absent is still awaited.
    A moment to come is when it is expected now."""

    verdicts: dict[str, tuple[Verdict, ...]] = Field(default_factory=dict)
    """Gate -> what it said, look by look."""

    @field_validator("verdicts", mode="before")
    @classmethod
    def _one_look(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: (verdict,) if isinstance(verdict, str) else verdict for name, verdict in value.items()}
        return value


def called_off(program: Program, progress: Progress) -> set[str]:
    """What the gates so far have dropped: what a narrowing gives up, and all that a stop does not ask for."""
    off: set[str] = set()
    for name in progress.verdicts.keys() & program.gates.keys():
        gate, verdicts = program.gates[name], progress.verdicts[name]
        off |= set(gate.narrow.drops) if "narrow" in verdicts else set()
        off |= program.nodes().keys() - set(gate.stop_goes_to) if "stop" in verdicts else set()
    return off - progress.activities.keys()
