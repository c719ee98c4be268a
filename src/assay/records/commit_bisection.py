"""Which commit made a step slower or faster, by noisy measurements."""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.records.record import Record


class SuspectCommit(Record):
    """A commit that may be the cause."""

    commit: str
    subject: str
    probability: float
    ratio: float | None
    blocks: NonNegativeInt


class SkippedCommit(Record):
    """A commit that does not run."""

    commit: str
    subject: str
    because: str


class CommitBisection(Record):
    """The commit that changed the step time."""

    verdict: Literal["found", "several", "no_difference", "undecided"]
    culprits: tuple[str, ...]
    """Several if they cannot be separated."""
    probability: float | None
    """That it is one of them."""
    ratio: float
    """After / before."""
    low: float | None
    high: float | None
    least: float
    """Smallest relevant change, as a share."""
    error: float
    """Probability of a wrong result."""
    good: str
    bad: str
    commits: PositiveInt
    """From GOOD to BAD."""
    unchanged: NonNegativeInt
    """Commits that do not change the package."""
    blocks: PositiveInt
    """Paired runs."""
    steps: PositiveInt
    warm_up: NonNegativeInt
    workers: PositiveInt
    apart: bool
    device_hours: NonNegativeFloat
    suspects: tuple[SuspectCommit, ...]
    """Likeliest first."""
    skipped: tuple[SkippedCommit, ...]
    sources: dict[str, str]
