"""What was looked at, and what the looking cost."""

from pydantic import NonNegativeFloat, PositiveInt

from assay.records.record import Record


class Look(Record):
    """One look at a comparison; written when it is taken, whatever was seen."""

    name: str
    """`G1`, `seed 2 at step 400`, ..."""
    num_seeds: PositiveInt
    """Seed pairs behind it."""
    is_gate: bool
    """It was declared before the first run."""
    level: float
    """One-sided confidence that a claim at this look must reach."""
    spent: NonNegativeFloat
    """False-positive chance that this look adds."""
    spent_so_far: NonNegativeFloat
    """The same of all looks up to this one; never above the plan's error rate."""
