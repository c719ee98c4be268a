r"""Runs of evals: items graded in chunks, each put once, whoever dies.

evalrun/ID/log/...               what happened to it
evalrun/ID/items/00000000.json   the results of its first items, put only if absent; `graded` names it then

queued --> in_progress --> completed
     \          \--------> failed            canceled: from either, at once
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from assay.base.clock import Clock
from assay.records.eval_run import (
    EVAL_RUN_ENTRIES,
    CriterionCounts,
    EvalChunk,
    EvalItem,
    EvalRunCancelled,
    EvalRunClaimed,
    EvalRunCompleted,
    EvalRunCreated,
    EvalRunDeleted,
    EvalRunEntry,
    EvalRunFailed,
    EvalRunGraded,
    EvalRunRead,
    EvalRunTaken,
    ModelUsage,
)
from assay.serving.chunks import Chunks
from assay.serving.ids import is_id, item_place
from assay.serving.job_repository import Shelf
from assay.serving.refusal import RefusedError
from assay.serving.retention import CheckpointKeeper, Weights
from assay.store.logs.entry_log import LogKind
from assay.store.objects import ObjectStore

EvalRunStatus = Literal["queued", "in_progress", "completed", "canceled", "failed"]
RUN_STATUSES: tuple[EvalRunStatus, ...] = ("queued", "in_progress", "completed", "canceled", "failed")
_NONE = CriterionCounts(passed=0, failed=0, errored=0)


@dataclass(frozen=True)
class EvalRunState:
    """A run as its entries say."""

    created: EvalRunCreated
    lease: int = 0
    """The number of the newest lease: what is appended under another is refused."""
    read: EvalRunRead | None = None
    graded: tuple[EvalRunGraded, ...] = ()
    """In the order of their items."""
    completed: EvalRunCompleted | None = None
    failed: EvalRunFailed | None = None
    cancelled: EvalRunCancelled | None = None
    is_deleted: bool = False
    claim: int = 0
    """The number of the last repeat of its request that was answered with it."""

    @property
    def status(self) -> EvalRunStatus:
        """As the API has it."""
        if self.completed is not None:
            return "completed"
        if self.cancelled is not None:
            return "canceled"
        if self.failed is not None:
            return "failed"
        return "queued" if self.read is None else "in_progress"

    @property
    def has_ended(self) -> bool:
        """Whether nothing is graded any more."""
        return self.is_deleted or self.status in ("completed", "canceled", "failed")

    @property
    def ended_s(self) -> float | None:
        """When that was."""
        last = self.completed or self.cancelled or self.failed
        return None if last is None else last.at_s

    @property
    def num_chunks(self) -> int:
        """Chunks of all items; 0 while they are not read."""
        return 0 if self.read is None else -(-self.read.num_items // self.read.chunk_items)

    @property
    def wants_chunk(self) -> bool:
        """Whether what is to be done next is to grade items, which is charged."""
        return not self.has_ended and self.num_made < self.num_chunks

    @property
    def charges(self) -> tuple[EvalRunGraded, ...]:
        """What its chunks cost."""
        return self.graded

    @property
    def is_settled(self) -> bool:
        """Whether it costs nothing more."""
        return self.has_ended

    @property
    def num_made(self) -> int:
        """Chunks that are graded."""
        return len(self.graded)

    @property
    def counts(self) -> CriterionCounts:
        """How many items fared how."""
        return _sum(each.items for each in self.graded)

    def counts_of(self, name: str) -> CriterionCounts:
        """Likewise by one criterion."""
        return _sum(each.criteria.get(name, _NONE) for each in self.graded)

    @property
    def usage(self) -> dict[str, ModelUsage]:
        """What was asked of each model."""
        found: dict[str, ModelUsage] = {}
        for each in self.graded:
            for name, more in each.usage.items():
                found[name] = added_usage(found.get(name), more)
        return found


def _sum(counts: Any) -> CriterionCounts:
    found = [(count.passed, count.failed, count.errored) for count in counts]
    passed, failed, errored = (sum(column) for column in zip(*found, strict=True)) if found else (0, 0, 0)
    return CriterionCounts(passed=passed, failed=failed, errored=errored)


def added_usage(first: ModelUsage | None, second: ModelUsage) -> ModelUsage:
    """Both together."""
    if first is None:
        return second
    return ModelUsage(
        invocations=first.invocations + second.invocations,
        prompt_tokens=first.prompt_tokens + second.prompt_tokens,
        completion_tokens=first.completion_tokens + second.completion_tokens,
    )


def fold_eval_run(state: EvalRunState | None, entry: EvalRunEntry) -> EvalRunState:
    """The state behind one more entry."""
    if isinstance(entry, EvalRunCreated):
        assert state is None, "a run is created once"
        return EvalRunState(entry)
    assert state is not None
    return replace(state, **_changes(state, entry))


def _changes(state: EvalRunState, entry: EvalRunEntry) -> dict[str, Any]:
    match entry:
        case EvalRunTaken():
            return {"lease": entry.lease}
        case EvalRunRead():
            return {"read": entry}
        case EvalRunGraded():
            return {"graded": (*state.graded, entry)}
        case EvalRunCompleted():
            return {"completed": entry}
        case EvalRunFailed():
            return {"failed": entry}
        case EvalRunCancelled():
            return {"cancelled": entry}
        case EvalRunDeleted():
            return {"is_deleted": True}
        case EvalRunClaimed():
            return {"claim": max(state.claim, entry.retry_count)}
        case EvalRunCreated():
            raise AssertionError("a run is created once")


EVAL_RUN_LOG: LogKind[EvalRunEntry, EvalRunState] = LogKind("eval run's log", EVAL_RUN_ENTRIES, fold_eval_run)


class EvalRunShelf:
    """All runs of a store's evals."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self.shelf: Shelf[EvalRunEntry, EvalRunState] = Shelf(store, "evalrun", EVAL_RUN_LOG, is_worked_at=True)
        self.chunks = Chunks(store, "evalrun", "items", EvalChunk)
        self._clock = clock

    def put(self, created: EvalRunCreated) -> EvalRunState:
        """Make a run; made twice it is made once."""
        return self.shelf.begin(created.run_id, created, created.eval_id)

    def find(self, run_id: str, eval_id: str, project: str) -> EvalRunState | None:
        """The run, if it is there, of this eval and the project's."""
        state = self.shelf.state(run_id)
        if state is None or state.is_deleted:
            return None
        created = state.created
        return state if (created.eval_id, created.project) == (eval_id, project) else None

    def cancel(self, run_id: str) -> EvalRunState:
        """Have nothing more graded; one that is cancelled already is answered with as it is."""
        cancelled = EvalRunCancelled(at_s=self._clock.now_s())

        def decide(now: EvalRunState) -> EvalRunEntry | None:
            if now.cancelled is not None:
                return None
            if now.has_ended:
                raise RefusedError(
                    f"Run {run_id} is {now.status}: it cannot be cancelled.", code="invalid_run_state"
                )
            return cancelled

        return self._change(run_id, decide)

    def delete(self, run_id: str) -> None:
        """Let nobody find it any more; its results go with the next look of a worker."""
        deleted = EvalRunDeleted(at_s=self._clock.now_s())
        self.shelf.open(run_id)
        state = self._change(run_id, lambda now: None if now.is_deleted else deleted)
        self.shelf.unlist(run_id, state.created.project, state.created.eval_id)

    def forget_results(self, state: EvalRunState) -> None:
        """Delete the results of a run that was deleted; whoever is cut off in this does it again."""
        created = state.created
        self.chunks.forget(created.run_id)
        self.shelf.unlist(created.run_id, created.project, created.eval_id)

    def item(self, state: EvalRunState, item_id: str) -> EvalItem | None:
        """One item that is graded, by its id."""
        index = item_place(item_id, state.created.run_id)
        if index is None or state.read is None:
            return None
        chunk, place = divmod(index, state.read.chunk_items)
        if chunk >= state.num_made:
            return None
        found = self.chunks.find(state.created.run_id, chunk)
        return found.items[place] if found is not None and place < len(found.items) else None

    def _change(self, run_id: str, decide: Callable[[EvalRunState], EvalRunEntry | None]) -> EvalRunState:
        assert is_id("evalrun", run_id), run_id
        state = self.shelf.log(run_id).append(lambda now: None if now is None else decide(now))
        assert state is not None, f"{run_id} was found before"
        return state


def weights_of(keeper: CheckpointKeeper, created: EvalRunCreated) -> list[Weights]:
    """Those of every model that a run asks."""
    return [
        keeper.of(name, source.get("run_id"), source.get("step")) for name, source in created.sources.items()
    ]


def counted(chunk: EvalChunk) -> Mapping[str, Any]:
    """What the entry of a chunk says of it."""
    names = [result.name for result in chunk.items[0].results] if chunk.items else []
    by_name = {
        name: [next(result for result in item.results if result.name == name) for item in chunk.items]
        for name in names
    }
    return {
        "items": CriterionCounts(
            passed=sum(item.status == "pass" for item in chunk.items),
            failed=sum(item.status == "fail" for item in chunk.items),
            errored=sum(item.status == "error" for item in chunk.items),
        ),
        "criteria": {
            name: CriterionCounts(
                passed=sum(each.passed for each in found),
                failed=sum(not each.passed and each.score is not None for each in found),
                errored=sum(each.score is None for each in found),
            )
            for name, found in by_name.items()
        },
        "usage": dict(chunk.usage),
    }
