"""Evals: item schema and testing criteria are immutable; name and metadata can be updated."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from assay.base.clock import Clock
from assay.records.eval_run import EVAL_ENTRIES, EvalClaimed, EvalCreated, EvalDeleted, EvalEntry, EvalUpdated
from assay.serving.log_repository import LogRepository
from assay.store.logs.entry_log import LogKind
from assay.store.objects import ObjectStore


@dataclass(frozen=True)
class EvalState:
    """State of an eval, folded from its log."""

    created: EvalCreated
    name: str
    metadata: dict[str, str] | None
    is_deleted: bool = False
    claim: int = 0
    """Highest retry count of its create request that was answered with this eval."""


def fold_eval(state: EvalState | None, entry: EvalEntry) -> EvalState:
    """Return the state after one more log entry."""
    if isinstance(entry, EvalCreated):
        assert state is None, "an eval is created once"
        return EvalState(entry, entry.name, entry.metadata)
    assert state is not None
    match entry:
        case EvalUpdated():
            return replace(state, name=entry.name, metadata=entry.metadata)
        case EvalDeleted():
            return replace(state, is_deleted=True)
        case EvalClaimed():
            return replace(state, claim=max(state.claim, entry.retry_count))


EVAL_LOG: LogKind[EvalEntry, EvalState] = LogKind("eval's log", EVAL_ENTRIES, fold_eval)


class EvalRepository:
    """Evals in an object store."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self.logs: LogRepository[EvalEntry, EvalState] = LogRepository(store, "eval", EVAL_LOG, tracks_open=False)
        self._clock = clock

    def put(self, created: EvalCreated) -> EvalState:
        """Create an eval; idempotent for the same id."""
        return self.logs.begin(created.eval_id, created)

    def find(self, eval_id: str, project: str) -> EvalState | None:
        """Return the eval if it belongs to `project` and is not deleted."""
        state = self.logs.state(eval_id)
        is_active = state is not None and state.created.project == project and not state.is_deleted
        return state if is_active else None

    def update(
        self, eval_id: str, *, name: str | None, has_metadata: bool, metadata: dict[str, str] | None
    ) -> EvalState:
        """Update name and metadata. `has_metadata`: whether `metadata` was sent; None clears it."""

        def decide(now: EvalState) -> EvalEntry | None:
            updated = (name or now.name, metadata if has_metadata else now.metadata)
            if updated == (now.name, now.metadata):
                return None
            return EvalUpdated(at_s=self._clock.now_s(), name=updated[0], metadata=updated[1])

        return self._change(eval_id, decide)

    def delete(self, eval_id: str) -> None:
        """Delete the eval; workers cancel its runs."""
        deleted = EvalDeleted(at_s=self._clock.now_s())
        state = self._change(eval_id, lambda now: None if now.is_deleted else deleted)
        self.logs.unlist(eval_id, state.created.project)

    def _change(self, eval_id: str, decide: Callable[[EvalState], EvalEntry | None]) -> EvalState:
        state = self.logs.log(eval_id).append(lambda now: None if now is None else decide(now))
        assert state is not None, f"{eval_id} was found before"
        return state
