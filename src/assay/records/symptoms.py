"""What triage read in logs and on record: of which class a failure is, what names it, what several share."""

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


class RecordedSymptom(Record):
    """What the record of a run says of one attempt."""

    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True)

    run_id: str
    """The run."""
    attempt: PositiveInt | None = None
    """Which of its lives; null where it is none's."""
    rank: NonNegativeInt | None = None
    """Whom it befell; null where it was not one rank."""
    host: str = ""
    """That rank's machine."""
    step: NonNegativeInt | None = None
    """The update to look at: the one under way, or whose loss stands out; null before the first."""
    at_s: float
    """When the attempt began, or the notice was made, in seconds since the Unix epoch."""
    seen_by: Literal["failure", "notice", "loss"]
    """What it is known by: why an attempt ended, what was noticed beside that, or a loss that stands out."""
    symptom_class: SymptomClass = Field(alias="class")
    """What kind of failure it is, by its kind on record or else by the first rule that its text meets."""
    key: str
    """What failures of that kind share: the text with its numbers, paths and addresses masked; empty where the
    run did not fail."""
    text: str
    """In the words of who noticed it."""


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
    """In which logs, in the order in which they were read."""
    runs: tuple[str, ...] = ()
    """In which runs on record, likewise."""


class SharedCause(Record):
    """Signatures that one cause may have."""

    signatures: tuple[str, ...]
    """Their keys."""
    factors: dict[str, str]
    """What their attempts share, factor -> its value; empty where it is only the moment."""
    onset_s: float | None = None
    """Since when they occur more often, in seconds since the Unix epoch; null where no moment stands out."""
    p_value: float
    """How often attempts with nothing at fault look as much like it."""


class Symptoms(Record):
    """What logs and runs on record say together."""

    logs: tuple[LogSymptom, ...]
    """In the order in which they were read."""
    failures: tuple[RecordedSymptom, ...] = ()
    """What is on record of runs, the first attempt first."""
    signatures: tuple[Signature, ...]
    """The most frequent first."""
    shared: tuple[SharedCause, ...] = ()
    """Signatures that share factors or an onset, the surest first."""
    shared_because: str = ""
    """What `shared` rests on, or why it is empty."""
