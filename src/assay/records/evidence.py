"""Evidence of a comparison and its cost."""

from pydantic import NonNegativeFloat, PositiveInt

from assay.records.record import Record


class Look(Record):
    """A look at a comparison."""

    name: str
    """E.g. `G1`."""
    num_seeds: PositiveInt
    """Pairs."""
    is_gate: bool
    """Declared before the first run."""
    level: float
    """One-sided confidence required."""
    spent: NonNegativeFloat
    """Type I error."""
    spent_so_far: NonNegativeFloat
