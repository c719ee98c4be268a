"""What people say about a run: tags to find it by, and notes. No number rests on them."""

from assay.records.record import Record


class Note(Record):
    """One remark of somebody; it is added to, and never edited."""

    at_s: float
    """Seconds since the Unix epoch."""
    by: str
    """The user's name."""
    text: str


class Remarks(Record):
    """All that was said about a run."""

    run_id: str
    tags: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    """The oldest first."""
