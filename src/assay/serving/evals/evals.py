"""Evals: what items look like, and by which criteria they are judged. Both stay as they were made; a name does
not."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from assay.base.clock import Clock
from assay.records.eval_run import (
    EVAL_ENTRIES,
    EvalClaimed,
    EvalCreated,
    EvalDeleted,
    EvalEntry,
    EvalUpdated,
)
from assay.serving.job_repository import Shelf
from assay.store.logs.entry_log import LogKind
from assay.store.objects import ObjectStore


@dataclass(frozen=True)
class EvalState:
    """An eval as its entries say."""

    created: EvalCreated
    name: str
    metadata: dict[str, str] | None
    is_deleted: bool = False
    claim: int = 0
    """The number of the last repeat of its request that was answered with it."""


def fold_eval(state: EvalState | None, entry: EvalEntry) -> EvalState:
    """The state behind one more entry."""
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


class EvalShelf:
    """All evals of a store."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self.shelf: Shelf[EvalEntry, EvalState] = Shelf(store, "eval", EVAL_LOG, is_worked_at=False)
        self._clock = clock

    def put(self, created: EvalCreated) -> EvalState:
        """Make an eval; made twice it is made once."""
        return self.shelf.begin(created.eval_id, created)

    def find(self, eval_id: str, project: str) -> EvalState | None:
        """The eval, if it is there and the project's."""
        state = self.shelf.state(eval_id)
        is_there = state is not None and state.created.project == project and not state.is_deleted
        return state if is_there else None

    def update(
        self, eval_id: str, *, name: str | None, has_metadata: bool, metadata: dict[str, str] | None
    ) -> EvalState:
        """Call it otherwise; a name or metadata that are not given stay. `has_metadata`: whether these are."""

        def decide(now: EvalState) -> EvalEntry | None:
            wanted = (name or now.name, metadata if has_metadata else now.metadata)
            if wanted == (now.name, now.metadata):
                return None
            return EvalUpdated(at_s=self._clock.now_s(), name=wanted[0], metadata=wanted[1])

        return self._change(eval_id, decide)

    def delete(self, eval_id: str) -> None:
        """Let nobody find it any more; whoever works at runs of it stops."""
        deleted = EvalDeleted(at_s=self._clock.now_s())
        state = self._change(eval_id, lambda now: None if now.is_deleted else deleted)
        self.shelf.unlist(eval_id, state.created.project)

    def _change(self, eval_id: str, decide: Callable[[EvalState], EvalEntry | None]) -> EvalState:
        state = self.shelf.log(eval_id).append(lambda now: None if now is None else decide(now))
        assert state is not None, f"{eval_id} was found before"
        return state
