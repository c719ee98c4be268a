r"""Batches: the requests of a file, processed in chunks. Each chunk is stored once, even if workers die.

batch/ID/log/...                 the batch's log
batch/ID/answers/00000000.json   responses of one chunk, put if absent; deleted once the output files exist

validating --> in_progress --> finalizing --> completed | expired
     \--> failed      \--> cancelling --> cancelled
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from assay.base.clock import Clock
from assay.records.batch import (
    BATCH_ENTRIES,
    BatchAcquired,
    BatchCancelRequested,
    BatchChunk,
    BatchChunkCompleted,
    BatchClaimed,
    BatchCreated,
    BatchEnded,
    BatchEntry,
    BatchFailed,
    BatchGathering,
    BatchRead,
)
from assay.serving.api_error import ApiError
from assay.serving.chunks import Chunks
from assay.serving.log_repository import LogRepository
from assay.store.logs.entry_log import LogKind
from assay.store.objects import ObjectStore

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]


@dataclass(frozen=True)
class BatchState:
    """State of a batch, folded from its log."""

    created: BatchCreated
    lease: int = 0
    """Number of the newest lease; entries of older leases are rejected."""
    read: BatchRead | None = None
    completed_chunks: tuple[BatchChunkCompleted, ...] = ()
    """In request order."""
    cancel_requested: BatchCancelRequested | None = None
    gathering: BatchGathering | None = None
    failed: BatchFailed | None = None
    ended: BatchEnded | None = None
    claim: int = 0
    """Highest retry count of its create request that was answered with this batch."""

    @property
    def status(self) -> BatchStatus:
        if self.failed is not None:
            return "failed"
        if self.gathering is not None and self.ended is not None:
            return self.gathering.outcome
        if self.cancel_requested is not None:
            return "cancelling"
        if self.gathering is not None:
            return "finalizing"
        return "validating" if self.read is None else "in_progress"

    @property
    def has_ended(self) -> bool:
        return self.failed is not None or self.ended is not None

    @property
    def ended_s(self) -> float | None:
        last = self.failed or self.ended
        return None if last is None else last.at_s

    @property
    def num_chunks(self) -> int:
        """Total number of chunks; 0 before the input file was read."""
        return 0 if self.read is None else -(-self.read.num_requests // self.read.chunk_requests)

    @property
    def needs_chunk(self) -> bool:
        """Whether the next step processes requests, which is charged."""
        is_over = self.has_ended or self.cancel_requested is not None or self.gathering is not None
        return not is_over and self.num_done < self.num_chunks

    @property
    def charges(self) -> tuple[BatchChunkCompleted, ...]:
        return self.completed_chunks

    @property
    def has_final_cost(self) -> bool:
        return self.has_ended

    @property
    def num_done(self) -> int:
        """Completed chunks."""
        return len(self.completed_chunks)

    @property
    def num_processed(self) -> int:
        """Requests with a response, successful or not."""
        return sum(chunk.completed + chunk.failed for chunk in self.completed_chunks)


def fold_batch(state: BatchState | None, entry: BatchEntry) -> BatchState:
    """Return the state after one more log entry."""
    if isinstance(entry, BatchCreated):
        assert state is None, "a batch is created once"
        return BatchState(entry)
    assert state is not None
    return replace(state, **_changes(state, entry))


def _changes(state: BatchState, entry: BatchEntry) -> dict[str, Any]:
    match entry:
        case BatchAcquired():
            return {"lease": entry.lease}
        case BatchRead():
            return {"read": entry}
        case BatchChunkCompleted():
            return {"completed_chunks": (*state.completed_chunks, entry)}
        case BatchCancelRequested():
            return {"cancel_requested": entry}
        case BatchGathering():
            return {"gathering": entry}
        case BatchFailed():
            return {"failed": entry}
        case BatchEnded():
            return {"ended": entry}
        case BatchClaimed():
            return {"claim": max(state.claim, entry.retry_count)}
        case BatchCreated():
            raise AssertionError("a batch is created once")


BATCH_LOG: LogKind[BatchEntry, BatchState] = LogKind("batch's log", BATCH_ENTRIES, fold_batch)


class BatchRepository:
    """Batches in an object store."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self.logs: LogRepository[BatchEntry, BatchState] = LogRepository(store, "batch", BATCH_LOG, tracks_open=True)
        self.chunks = Chunks(store, "batch", "answers", BatchChunk)
        self._clock = clock

    def put(self, created: BatchCreated) -> BatchState:
        """Create a batch; idempotent for the same id."""
        return self.logs.begin(created.batch_id, created)

    def find(self, batch_id: str, project: str) -> BatchState | None:
        """Return the batch if it belongs to `project`."""
        state = self.logs.state(batch_id)
        return state if state is not None and state.created.project == project else None

    def cancel(self, batch_id: str) -> BatchState:
        """Request cancellation; idempotent. Raises `ApiError` if the batch has ended."""
        cancel = BatchCancelRequested(at_s=self._clock.now_s())

        def decide(now: BatchState | None) -> BatchEntry | None:
            assert now is not None, f"{batch_id} was found before"
            if now.cancel_requested is not None and now.status in ("cancelling", "cancelled"):
                return None
            if now.has_ended or now.gathering is not None:
                raise ApiError(f"Batch {batch_id} is {now.status}: it cannot be cancelled.", code="invalid_batch_state")
            return cancel

        state = self.logs.log(batch_id).append(decide)
        assert state is not None
        return state
