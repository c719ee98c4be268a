"""What people say about a run: tags to find it by, and notes. No number rests on them."""

from assay.records.record import Record


class Note(Record):
    """A note on a run (`assay runs note`)."""

    at_s: float
    by: str
    text: str


class RunNotes(Record):
    """All that was said about a run."""

    run_id: str
    tags: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    """The oldest first."""
