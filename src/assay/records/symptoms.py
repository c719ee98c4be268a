"""What triage read in logs: of which class each failure is, which line names it, and what they share."""

from typing import Literal

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt

from assay.records.record import Record

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
    """A line that may name the failure."""

    line: PositiveInt
    """From 1."""
    text: str
    """Without its time stamp and colours; cut at 500 characters."""


class LogSymptom(Record):
    """What one log says."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True)

    path: str
    """The file."""
    sha256: str
    """The SHA-256 of the file's bytes."""
    line: PositiveInt | None = None
    """The line that names the failure, from 1; null where none does."""
    symptom_class: SymptomClass = Field(alias="class")
    """What kind of failure it is, by the first rule that the line meets."""
    key: str = ""
    """What failures of that kind share: the line with its numbers, paths and addresses masked."""
    role: Role | None = None
    """Among the logs of its folder; null where it is alone, or where nobody can tell."""
    num_lines: NonNegativeInt = 0
    """Lines of the log."""
    candidates: tuple[LogCandidate, ...] = ()
    """The likeliest lines, at most three, the likeliest first."""


class Signature(Record):
    """Failures that are alike."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True)

    symptom_class: SymptomClass = Field(alias="class")
    """What kind of failure it is."""
    key: str
    """What they share."""
    count: PositiveInt
    """How many there are; what only fell with another rank, or was put away, is not counted."""
    paths: tuple[str, ...]
    """Where, in the order in which they were read."""


class Symptoms(Record):
    """What some logs say together."""

    logs: tuple[LogSymptom, ...]
    """In the order in which they were read."""
    signatures: tuple[Signature, ...]
    """The most frequent first."""
