"""Which commit made a step slower or faster, by noisy measurements."""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.records.record import Record


class SuspectCommit(Record):
    """A commit that may be the one."""

    commit: str
    subject: str
    """The first line of its message."""
    probability: float
    """That it is the one."""
    ratio: float | None
    """Seconds per step of it / of GOOD, by the blocks that it was measured in; None where it was in none."""
    blocks: NonNegativeInt


class SkippedCommit(Record):
    """A commit that does not run."""

    commit: str
    subject: str
    because: str


class CommitBisection(Record):
    """The commit between GOOD and BAD from which on a step takes longer, or less."""

    verdict: Literal["found", "several", "no_difference", "undecided"]
    """`several`: one of those in `culprits`, which only commits that do not run would tell apart.
    `no_difference`: a change of `least` or more from GOOD to BAD is ruled out."""
    because: str
    """The verdict in a sentence."""
    culprits: tuple[str, ...]
    """The commit, or those of `several`; the likeliest of an undecided one."""
    probability: float | None
    """That it is one of these, given that one commit made the difference; None where there is none."""
    ratio: float
    """Seconds per step from the culprit on / before it: the geometric mean over blocks; of BAD / of GOOD where
    there is no culprit."""
    low: float | None
    """The least of its interval, which holds at all looks at once; None while blocks are too few."""
    high: float | None
    least: float
    """The least change that matters, as a share."""
    error: float
    """The chance that a wrong commit is named, or a difference missed that there is."""
    good: str
    bad: str
    commits: PositiveInt
    """Behind GOOD, up to BAD."""
    unchanged: NonNegativeInt
    """Those of them that leave the package as it was, and cannot be the one."""
    blocks: PositiveInt
    """Each one run of GOOD beside one of another commit, in turns."""
    steps: PositiveInt
    """That count, of each run, at least."""
    warm_up: NonNegativeInt
    """Steps before those, which do not count."""
    workers: PositiveInt
    apart: bool
    """Whether one run followed the other, where both were to be held at once otherwise."""
    device_hours: NonNegativeFloat
    """Spent on all of it."""
    suspects: tuple[SuspectCommit, ...]
    """Commits by probability, the likeliest first; no others than those with 1% or that were measured."""
    skipped: tuple[SkippedCommit, ...]
    next: str
    """What to do, or what would tell."""
    sources: dict[str, str]
    """`recipe` -> SHA-256 of it."""
