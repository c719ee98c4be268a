"""An incident during a run, e.g. a hung rank, a slow rank or wrong arithmetic."""

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from assay.records.record import Record

IncidentKind = Literal[
    "hang",
    "straggler",
    "wrong_arithmetic",
    "fault",
    "repeated_failure",
    "other_code",
    "failed_request",
    "loss_not_finite",
    "ranks_lost",
    "waiting",
]
"""The last four are of sessions of the Tinker API: a request with an error as its result, a step whose loss is not
finite, ranks that ended and were started again, and a worker that cannot execute the session for now."""


class Incident(Record):
    """One observation; the run's folder keeps them in the order in which they were made."""

    incident: IncidentKind
    run_id: str
    attempt: PositiveInt
    at_s: float
    """Seconds since the Unix epoch."""
    rank: NonNegativeInt | None = None
    step: NonNegativeInt | None = None
    """The update under way."""
    host: str = ""
    text: str
    """One sentence for a person."""
