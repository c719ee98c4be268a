r"""Eval runs: items graded in chunks. Each chunk is stored once, even if workers die.

evalrun/ID/log/...               the run's log
evalrun/ID/items/00000000.json   results of one chunk, put if absent, then listed in the log

queued --> in_progress --> completed
     \          \--------> failed            canceled: from queued or in_progress, at once
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
    EvalRunAcquired,
    EvalRunCancelled,
    EvalRunClaimed,
    EvalRunCompleted,
    EvalRunCreated,
    EvalRunDeleted,
    EvalRunEntry,
    EvalRunFailed,
    EvalRunGraded,
    EvalRunRead,
    ModelUsage,
)
from assay.serving.api_error import ApiError
from assay.serving.chunks import Chunks
from assay.serving.ids import is_id, item_index_of
from assay.serving.log_repository import LogRepository
from assay.serving.retention import CheckpointRetention, Weights
from assay.store.logs.entry_log import LogKind
from assay.store.objects import ObjectStore

EvalRunStatus = Literal["queued", "in_progress", "completed", "canceled", "failed"]
RUN_STATUSES: tuple[EvalRunStatus, ...] = ("queued", "in_progress", "completed", "canceled", "failed")
_NONE = CriterionCounts(passed=0, failed=0, errored=0)


@dataclass(frozen=True)
class EvalRunState:
    """State of an eval run, folded from its log."""

    created: EvalRunCreated
    lease: int = 0
    """Number of the newest lease; entries of older leases are rejected."""
    read: EvalRunRead | None = None
    graded: tuple[EvalRunGraded, ...] = ()
    """In item order."""
    completed: EvalRunCompleted | None = None
    failed: EvalRunFailed | None = None
    cancelled: EvalRunCancelled | None = None
    is_deleted: bool = False
    claim: int = 0
    """Highest retry count of its create request that was answered with this run."""

    @property
    def status(self) -> EvalRunStatus:
        if self.completed is not None:
            return "completed"
        if self.cancelled is not None:
            return "canceled"
        if self.failed is not None:
            return "failed"
        return "queued" if self.read is None else "in_progress"

    @property
    def has_ended(self) -> bool:
        return self.is_deleted or self.status in ("completed", "canceled", "failed")

    @property
    def ended_s(self) -> float | None:
        last = self.completed or self.cancelled or self.failed
        return None if last is None else last.at_s

    @property
    def num_chunks(self) -> int:
        """Total number of chunks; 0 before the items were read."""
        return 0 if self.read is None else -(-self.read.num_items // self.read.chunk_items)

    @property
    def needs_chunk(self) -> bool:
        """Whether the next step grades items, which is charged."""
        return not self.has_ended and self.num_done < self.num_chunks

    @property
    def charges(self) -> tuple[EvalRunGraded, ...]:
        return self.graded

    @property
    def has_final_cost(self) -> bool:
        return self.has_ended

    @property
    def num_done(self) -> int:
        """Graded chunks."""
        return len(self.graded)

    @property
    def counts(self) -> CriterionCounts:
        """Items by outcome."""
        return _sum(chunk.items for chunk in self.graded)

    def counts_of(self, name: str) -> CriterionCounts:
        """Items by outcome for one criterion."""
        return _sum(chunk.criteria.get(name, _NONE) for chunk in self.graded)

    @property
    def usage(self) -> dict[str, ModelUsage]:
        """Token usage by model."""
        found: dict[str, ModelUsage] = {}
        for chunk in self.graded:
            for name, more in chunk.usage.items():
                found[name] = added_usage(found.get(name), more)
        return found


def _sum(counts: Any) -> CriterionCounts:
    found = [(count.passed, count.failed, count.errored) for count in counts]
    passed, failed, errored = (sum(column) for column in zip(*found, strict=True)) if found else (0, 0, 0)
    return CriterionCounts(passed=passed, failed=failed, errored=errored)


def added_usage(first: ModelUsage | None, second: ModelUsage) -> ModelUsage:
    """Return the sum of two usages."""
    if first is None:
        return second
    return ModelUsage(
        invocations=first.invocations + second.invocations,
        prompt_tokens=first.prompt_tokens + second.prompt_tokens,
        completion_tokens=first.completion_tokens + second.completion_tokens,
    )


def fold_eval_run(state: EvalRunState | None, entry: EvalRunEntry) -> EvalRunState:
    """Return the state after one more log entry."""
    if isinstance(entry, EvalRunCreated):
        assert state is None, "a run is created once"
        return EvalRunState(entry)
    assert state is not None
    return replace(state, **_changes(state, entry))


def _changes(state: EvalRunState, entry: EvalRunEntry) -> dict[str, Any]:
    match entry:
        case EvalRunAcquired():
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


class EvalRunRepository:
    """Eval runs in an object store."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self.logs: LogRepository[EvalRunEntry, EvalRunState] = LogRepository(
            store, "evalrun", EVAL_RUN_LOG, tracks_open=True
        )
        self.chunks = Chunks(store, "evalrun", "items", EvalChunk)
        self._clock = clock

    def put(self, created: EvalRunCreated) -> EvalRunState:
        """Create a run; idempotent for the same id."""
        return self.logs.begin(created.run_id, created, created.eval_id)

    def find(self, run_id: str, eval_id: str, project: str) -> EvalRunState | None:
        """Return the run if it belongs to the eval and the project and is not deleted."""
        state = self.logs.state(run_id)
        if state is None or state.is_deleted:
            return None
        created = state.created
        return state if (created.eval_id, created.project) == (eval_id, project) else None

    def cancel(self, run_id: str) -> EvalRunState:
        """Cancel the run; idempotent. Raises `ApiError` if it has ended otherwise."""
        cancelled = EvalRunCancelled(at_s=self._clock.now_s())

        def decide(now: EvalRunState) -> EvalRunEntry | None:
            if now.cancelled is not None:
                return None
            if now.has_ended:
                raise ApiError(f"Run {run_id} is {now.status}: it cannot be cancelled.", code="invalid_run_state")
            return cancelled

        return self._change(run_id, decide)

    def delete(self, run_id: str) -> None:
        """Delete the run; a worker deletes its results later."""
        deleted = EvalRunDeleted(at_s=self._clock.now_s())
        self.logs.open(run_id)
        state = self._change(run_id, lambda now: None if now.is_deleted else deleted)
        self.logs.unlist(run_id, state.created.project, state.created.eval_id)

    def forget_results(self, state: EvalRunState) -> None:
        """Delete the results of a deleted run; idempotent."""
        created = state.created
        self.chunks.forget(created.run_id)
        self.logs.unlist(created.run_id, created.project, created.eval_id)

    def item(self, state: EvalRunState, item_id: str) -> EvalItem | None:
        """Return a graded item."""
        index = item_index_of(item_id, state.created.run_id)
        if index is None or state.read is None:
            return None
        chunk, position = divmod(index, state.read.chunk_items)
        if chunk >= state.num_done:
            return None
        found = self.chunks.find(state.created.run_id, chunk)
        return found.items[position] if found is not None and position < len(found.items) else None

    def _change(self, run_id: str, decide: Callable[[EvalRunState], EvalRunEntry | None]) -> EvalRunState:
        assert is_id("evalrun", run_id), run_id
        state = self.logs.log(run_id).append(lambda now: None if now is None else decide(now))
        assert state is not None, f"{run_id} was found before"
        return state


def weights_of(retention: CheckpointRetention, created: EvalRunCreated) -> list[Weights]:
    """Return the weights of all models that a run uses."""
    return [retention.of(name, source.get("run_id"), source.get("step")) for name, source in created.sources.items()]


def counted(chunk: EvalChunk) -> Mapping[str, Any]:
    """Return the summary of a chunk that its log entry stores."""
    names = [result.name for result in chunk.items[0].results] if chunk.items else []
    by_name = {
        name: [next(result for result in item.results if result.name == name) for item in chunk.items] for name in names
    }
    return {
        "items": CriterionCounts(
            passed=sum(item.status == "pass" for item in chunk.items),
            failed=sum(item.status == "fail" for item in chunk.items),
            errored=sum(item.status == "error" for item in chunk.items),
        ),
        "criteria": {
            name: CriterionCounts(
                passed=sum(result.passed for result in found),
                failed=sum(not result.passed and result.score is not None for result in found),
                errored=sum(result.score is None for result in found),
            )
            for name, found in by_name.items()
        },
        "usage": dict(chunk.usage),
    }
