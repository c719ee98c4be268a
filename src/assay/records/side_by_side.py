"""Two commits, datasets or recipes, run in turn: which takes longer for a step."""

from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.records.record import Record


class VariantBlock(Record):
    """One run of each side, in turns."""

    ratio: float
    """Seconds per step of B / of A: the geometric mean over the steps that both made, spikes clipped."""
    a_s: dict[str, float]
    """Phase -> A's seconds per step."""
    b_s: dict[str, float]


class PhaseDifference(Record):
    """What a phase takes per step on either side."""

    a_s: float
    b_s: float
    difference_s: float
    """B's seconds less A's, the mean over blocks."""
    low_s: float | None
    """The least of its interval, the chance of error shared out among phases; None while blocks are too few."""
    high_s: float | None


class SideBySide(Record):
    """Which of two variants takes longer for a step of one recipe."""

    what: Literal["commits", "datasets", "recipes"]
    a: str
    """As it was named, and of a commit its subject."""
    b: str
    verdict: Literal["slower", "faster", "same", "undecided"]
    """What B is, against A. `same`: a change of `least` or more is ruled out."""
    because: str
    """The verdict in a sentence."""
    ratio: float
    """Seconds per step of B / of A: the geometric mean over blocks."""
    low: float | None
    """The least of its interval, which holds at all looks at once; None while blocks are too few."""
    high: float | None
    least: float
    """The least change that matters, as a share."""
    error: float
    """The chance that the interval does not hold the ratio, over all looks."""
    noise: NonNegativeFloat | None
    """Standard deviation of a block's ratio, as a share; None of one block."""
    phase: str | None
    """The phase that grew, or shrank, most; None where there is no difference."""
    phases: dict[str, PhaseDifference]
    steps: PositiveInt
    """That count, of each run, at least."""
    warm_up: NonNegativeInt
    """Steps before those, which do not count."""
    workers: PositiveInt
    apart: bool
    """Whether one run followed the other, where both were to be held at once otherwise."""
    device_hours: NonNegativeFloat
    """Spent on all of it."""
    blocks: tuple[VariantBlock, ...]
    """In the order in which they were measured, each with new processes."""
    next: str
    """What would tell, or what to do."""
    sources: dict[str, str]
    """A, B -> the commit, the dataset's fingerprint, or SHA-256 of the recipe; `recipe` -> SHA-256 of what both
    have in common."""
