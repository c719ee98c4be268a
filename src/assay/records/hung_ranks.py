"""Which ranks all others wait for, by their records of collectives."""

from pydantic import NonNegativeInt

from assay.records.record import Record
from assay.records.statement import Statement


class HungGroup(Record):
    """A process group that is blocked."""

    group: str
    ranks: tuple[NonNegativeInt, ...]
    sequence: NonNegativeInt
    """Number of the unfinished collective, or of the send or receive."""
    collective: str
    waiting: tuple[NonNegativeInt, ...]
    """Ranks in it."""
    absent: tuple[NonNegativeInt, ...]
    """Ranks that never entered it."""
    not_started: tuple[NonNegativeInt, ...] = ()
    """Ranks whose device has not begun it."""
    stopped: tuple[NonNegativeInt, ...] = ()
    """Ranks that issued nothing after it, although all others did."""
    others: dict[str, tuple[NonNegativeInt, ...]]
    """Other collectives to the ranks in them."""
    without_dump: tuple[NonNegativeInt, ...]


class HungRanks(Record):
    """Ranks that block the others."""

    ranks: tuple[NonNegativeInt, ...]
    """Those that all others wait for."""
    groups: tuple[HungGroup, ...]
    because: Statement
    sources: dict[str, str]
