"""Tags and notes that people add to a run."""

from assay.records.record import Record


class Note(Record):
    """A note on a run."""

    at_s: float
    by: str
    text: str


class RunNotes(Record):
    """Tags and notes of a run."""

    run_id: str
    tags: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    """Oldest first."""
