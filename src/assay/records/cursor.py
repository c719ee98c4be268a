"""How far a run is in the global order: the whole of a loader's state."""

from pydantic import NonNegativeInt

from assay.records.record import Record


class Cursor(Record):
    """The next step's place. Counts committed optimizer steps, so prefetch cannot leak into it."""

    epoch: NonNegativeInt = 0
    step_in_epoch: NonNegativeInt = 0
    """Optimizer steps of this epoch that are done."""
