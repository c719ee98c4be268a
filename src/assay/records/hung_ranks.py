"""Which ranks all others wait for, by their records of collectives."""

from pydantic import NonNegativeInt

from assay.records.record import Record


class HungGroup(Record):
    """A process group that stands still."""

    group: str
    """Its name, and its description where it has one."""
    ranks: tuple[NonNegativeInt, ...]
    """Its members."""
    sequence: NonNegativeInt
    """The number of the collective that does not end, as torch counts them in this group."""
    collective: str
    """What most of its ranks wait in, e.g. `gloo:all_reduce`."""
    waiting: tuple[NonNegativeInt, ...]
    """Ranks that entered it."""
    absent: tuple[NonNegativeInt, ...]
    """Ranks that never did."""
    others: dict[str, tuple[NonNegativeInt, ...]]
    """What was entered in its place -> the ranks."""
    without_dump: tuple[NonNegativeInt, ...]
    """Members of which no dump is there."""


class HungRanks(Record):
    """Who holds up whom."""

    ranks: tuple[NonNegativeInt, ...]
    """Those that all wait for; empty where that cannot be told."""
    groups: tuple[HungGroup, ...]
    """Groups that stand still."""
    because: str
    sources: dict[str, str]
    """What was read -> SHA-256 of its bytes."""
