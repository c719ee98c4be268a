r"""Eval runs: items graded in chunks. Each chunk is stored once, even if workers die.

evalrun/ID/log/...               the run's log
evalrun/ID/items/00000000.json   results of one chunk, put if absent, then listed in the log

queued --> in_progress --> completed
     \          \--------> failed            canceled: from queued or in_progress, at once
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

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
from assay.serving.chunks import ChunkedRepository, ChunkedState
from assay.serving.ids import item_index_of
from assay.serving.repository import resource_log
from assay.serving.retention import CheckpointRetention, Weights

EvalRunStatus = Literal["queued", "in_progress", "completed", "canceled", "failed"]
RUN_STATUSES: tuple[EvalRunStatus, ...] = ("queued", "in_progress", "completed", "canceled", "failed")
_NONE = CriterionCounts(passed=0, failed=0, errored=0)


@dataclass(frozen=True)
class EvalRunState(ChunkedState[EvalRunCreated, EvalRunGraded]):
    """State of an eval run, folded from its log."""

    read: EvalRunRead | None = None
    completed: EvalRunCompleted | None = None
    failed: EvalRunFailed | None = None
    cancelled: EvalRunCancelled | None = None

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
    def counts(self) -> CriterionCounts:
        """Items by outcome."""
        return _sum(chunk.items for chunk in self.charges)

    def counts_of(self, name: str) -> CriterionCounts:
        """Items by outcome for one criterion."""
        return _sum(chunk.criteria.get(name, _NONE) for chunk in self.charges)

    @property
    def usage(self) -> dict[str, ModelUsage]:
        """Token usage by model."""
        found: dict[str, ModelUsage] = {}
        for chunk in self.charges:
            for name, more in chunk.usage.items():
                found[name] = added_usage(found.get(name), more)
        return found

    def changes(self, entry: EvalRunEntry) -> dict[str, Any]:
        match entry:
            case EvalRunAcquired():
                return {"lease": entry.lease}
            case EvalRunGraded():
                return {"charges": (*self.charges, entry)}
            case EvalRunRead():
                return {"read": entry}
            case EvalRunCompleted():
                return {"completed": entry}
            case EvalRunFailed():
                return {"failed": entry}
            case EvalRunCancelled():
                return {"cancelled": entry}
            case EvalRunDeleted():
                return {"is_deleted": True}
            case _:
                raise AssertionError(entry)


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


class EvalRunRepository(ChunkedRepository[EvalRunEntry, EvalRunState, EvalChunk]):
    """Eval runs in an object store."""

    id_kind = "evalrun"
    log_kind = resource_log("eval run's log", EVAL_RUN_ENTRIES, EvalRunState)
    title, param, id_field = "eval run", "run_id", "run_id"
    claimed = EvalRunClaimed
    chunk_class, chunk_folder = EvalChunk, "items"
    num_owners = 2

    def owners(self, created: EvalRunCreated) -> tuple[str, ...]:
        return (created.project, created.eval_id)

    def cancel(self, run_id: str) -> EvalRunState:
        """Cancel the run; idempotent. Raises `ApiError` if it has ended otherwise."""
        cancelled = EvalRunCancelled(at_s=self._clock.now_s())

        def decide(now: EvalRunState) -> EvalRunEntry | None:
            if now.cancelled is not None:
                return None
            if now.has_ended:
                raise ApiError(f"Run {run_id} is {now.status}: it cannot be cancelled.", code="invalid_run_state")
            return cancelled

        return self.change(run_id, decide)

    def delete(self, run_id: str) -> None:
        """Delete the run; a worker deletes its results later."""
        deleted = EvalRunDeleted(at_s=self._clock.now_s())
        self.open(run_id)
        self.unlist(self.change(run_id, lambda now: None if now.is_deleted else deleted))

    def forget_results(self, state: EvalRunState) -> None:
        """Delete the results of a deleted run; idempotent."""
        self.forget_chunks(state.created.run_id)
        self.unlist(state)

    def item(self, state: EvalRunState, item_id: str) -> EvalItem | None:
        """Return a graded item."""
        index = item_index_of(item_id, state.created.run_id)
        if index is None or state.read is None:
            return None
        chunk, position = divmod(index, state.read.chunk_items)
        if chunk >= state.num_done:
            return None
        found = self.find_chunk(state.created.run_id, chunk)
        return found.items[position] if found is not None and position < len(found.items) else None


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
