"""The log of outer steps in the store where clusters meet; see `records.outer`."""

from assay.records.outer import OUTER_CLASSES, OuterEntry
from assay.store.logs.entry_log import EntryLog, LogKind
from assay.store.objects import ObjectStore

OuterLog = EntryLog[OuterEntry, tuple[OuterEntry, ...]]
"""Its state is the entries, oldest first."""

_KIND: LogKind[OuterEntry, tuple[OuterEntry, ...]] = LogKind(
    "log of outer steps", OUTER_CLASSES, lambda entries, entry: (*(entries or ()), entry)
)


def outer_log(store: ObjectStore) -> OuterLog:
    """Return the log of outer steps of a meeting place."""
    return EntryLog(store, "outer", _KIND)
