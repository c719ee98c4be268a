"""Checkpoints of a run that others rely on, so that its retention leaves them: a log for each, in its store.

    kept/may-be                          somebody may keep some: put before the run is launched
    kept/checkpoints/00000005-0001/log/  kept (by whom), released, retired

One log decides. Who relies on a checkpoint appends only where it is not retired, and the run retires only
where nobody relies on it. So whoever comes first has his way, on whatever machine the other is, and nobody is
told yes for bytes that go. A run that died between an entry `retired` and its commit has deleted nothing: the
next commit does, or the checkpoint stays, and is refused to others.
"""

from typing import NamedTuple

from assay.base.clock import Clock
from assay.records.retained_checkpoint import (
    RETENTION_ENTRIES,
    CheckpointReleased,
    CheckpointRetained,
    CheckpointRetired,
    RetentionEntry,
)
from assay.store.logs.entry_log import EntryLog, LogKind
from assay.store.objects import ObjectStore

MAY_BE = "kept/may-be"


class RetentionState(NamedTuple):
    """Holders of a checkpoint."""

    holders: frozenset[str] = frozenset()
    is_retired: bool = False


def fold_retention(state: RetentionState | None, entry: RetentionEntry) -> RetentionState:
    """Return the state after an entry."""
    state = state or RetentionState()
    match entry:
        case CheckpointRetained():
            return state._replace(holders=state.holders | {entry.holder})
        case CheckpointReleased():
            return state._replace(holders=state.holders - {entry.holder})
        case CheckpointRetired():
            return state._replace(is_retired=True)


RETENTION_LOG: LogKind[RetentionEntry, RetentionState] = LogKind(
    "log of a kept checkpoint", RETENTION_ENTRIES, fold_retention
)


class RetainedCheckpoints:
    """Retained checkpoints of one run, by folder."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        """`store`: the run's own."""
        self._store = store
        self._clock = clock
        self._may_be: bool | None = None

    def open_to_others(self) -> None:
        """Make the run check for holders before it retires checkpoints. Call this before the launch."""
        self._store.put_if_absent(MAY_BE, b"")

    def keep(self, folder: str, holder: str) -> bool:
        """Retain a checkpoint for a holder; return False if it was already retired."""
        retained = CheckpointRetained(holder=holder, at_s=self._clock.now_s())

        def decide(now: RetentionState | None) -> RetentionEntry | None:
            is_unchanged = now is not None and (now.is_retired or holder in now.holders)
            return None if is_unchanged else retained

        state = self._log(folder).append(decide)
        assert state is not None
        return not state.is_retired

    def release(self, folder: str, holder: str) -> None:
        """Remove a holder of a checkpoint."""
        released = CheckpointReleased(holder=holder, at_s=self._clock.now_s())
        self._log(folder).append(lambda now: released if now is not None and holder in now.holders else None)

    def retire(self, folder: str) -> bool:
        """Retire a checkpoint if nothing holds it; return whether the run may delete it."""
        if self._may_be is None:
            self._may_be = self._store.exists(MAY_BE)
        if not self._may_be:
            return True
        retired = CheckpointRetired(at_s=self._clock.now_s())

        def decide(now: RetentionState | None) -> RetentionEntry | None:
            return retired if now is None or not (now.holders or now.is_retired) else None

        state = self._log(folder).append(decide)
        assert state is not None
        return state.is_retired

    def _log(self, folder: str) -> EntryLog[RetentionEntry, RetentionState]:
        return EntryLog(self._store, f"kept/{folder}/log", RETENTION_LOG)
