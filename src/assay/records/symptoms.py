"""What triage read in logs and on record: of which class a failure is, what names it, what several share."""

from typing import Literal

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt

from assay.records.record import Record
from assay.records.statement import Statement

SymptomClass = Literal[
    "device_memory",
    "host_memory",
    "device_error",
    "collective",
    "hang",
    "crash",
    "storage",
    "network",
    "missing_file",
    "permission",
    "environment",
    "data",
    "not_finite",
    "preempted",
    "program",
    "unknown",
]
"""`environment`: a module, library, command or version that is missing. `preempted`: stopped from outside, by a
preemption, a time limit, a cancellation. `program`: any other exception, error of a compiler or failed test."""

Role = Literal["initiating", "cascade", "teardown"]
"""Among the ranks of one attempt. `cascade`: it fell because another rank had; `teardown`: it was put away."""


class LogCandidate(Record):
    """A line that may explain the failure."""

    line: PositiveInt
    text: str


class LogSymptom(Record):
    """The failure in one log."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True)

    path: str
    sha256: str
    line: PositiveInt | None = None
    symptom_class: SymptomClass = Field(alias="class")
    key: str = ""
    """The line with numbers, paths and addresses masked."""
    role: Role | None = None
    """In its folder."""
    num_lines: NonNegativeInt = 0
    candidates: tuple[LogCandidate, ...] = ()
    """Up to three."""


class RecordedSymptom(Record):
    """A failure on record."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True)

    run_id: str
    attempt: PositiveInt | None = None
    rank: NonNegativeInt | None = None
    host: str = ""
    step: NonNegativeInt | None = None
    at_s: float
    seen_by: Literal["failure", "incident", "loss"]
    symptom_class: SymptomClass = Field(alias="class")
    key: str
    text: str


class Signature(Record):
    """Failures with the same key."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True)

    symptom_class: SymptomClass = Field(alias="class")
    key: str
    count: PositiveInt
    """Without cascading failures."""
    paths: tuple[str, ...]
    runs: tuple[str, ...] = ()


class SharedCause(Record):
    """Signatures that may have one cause."""

    signatures: tuple[str, ...]
    factors: dict[str, str]
    """Common to their attempts, or what replays of their steps name: `operator`, or `explanation`."""
    runs: tuple[str, ...] = ()
    """Whose replays name it."""
    onset_s: float | None = None
    """When they became more frequent."""
    p_value: float | None
    """Under no common cause; null if replays show it."""


class Symptoms(Record):
    """Failures in logs and runs."""

    logs: tuple[LogSymptom, ...]
    """In reading order."""
    failures: tuple[RecordedSymptom, ...] = ()
    signatures: tuple[Signature, ...]
    """Most frequent first."""
    shared: tuple[SharedCause, ...] = ()
    """Most certain first."""
    shared_because: Statement | None = None
