r"""Batches: the requests of a file, processed in chunks. Each chunk is stored once, even if workers die.

batch/ID/log/...                 the batch's log
batch/ID/answers/00000000.json   responses of one chunk, put if absent; deleted once the output files exist

validating --> in_progress --> finalizing --> completed | expired
     \--> failed      \--> cancelling --> cancelled
"""

from dataclasses import dataclass
from typing import Any, Literal

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
from assay.serving.chunks import ChunkedRepository, ChunkedState
from assay.serving.repository import resource_log

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]


@dataclass(frozen=True)
class BatchState(ChunkedState[BatchCreated, BatchChunkCompleted]):
    """State of a batch, folded from its log."""

    read: BatchRead | None = None
    cancel_requested: BatchCancelRequested | None = None
    gathering: BatchGathering | None = None
    failed: BatchFailed | None = None
    ended: BatchEnded | None = None

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
        return super().needs_chunk and self.cancel_requested is None and self.gathering is None

    @property
    def num_processed(self) -> int:
        """Requests with a response, successful or not."""
        return sum(chunk.completed + chunk.failed for chunk in self.charges)

    def changes(self, entry: BatchEntry) -> dict[str, Any]:
        match entry:
            case BatchAcquired():
                return {"lease": entry.lease}
            case BatchChunkCompleted():
                return {"charges": (*self.charges, entry)}
            case BatchRead():
                return {"read": entry}
            case BatchCancelRequested():
                return {"cancel_requested": entry}
            case BatchGathering():
                return {"gathering": entry}
            case BatchFailed():
                return {"failed": entry}
            case BatchEnded():
                return {"ended": entry}
            case _:
                raise AssertionError(entry)


class BatchRepository(ChunkedRepository[BatchEntry, BatchState, BatchChunk]):
    """Batches in an object store."""

    id_kind = "batch"
    log_kind = resource_log("batch's log", BATCH_ENTRIES, BatchState)
    title, param, id_field = "batch", "batch_id", "batch_id"
    claimed = BatchClaimed
    chunk_class, chunk_folder = BatchChunk, "answers"

    def cancel(self, batch_id: str) -> BatchState:
        """Request cancellation; idempotent. Raises `ApiError` if the batch has ended."""
        cancel = BatchCancelRequested(at_s=self._clock.now_s())

        def decide(now: BatchState) -> BatchEntry | None:
            if now.cancel_requested is not None and now.status in ("cancelling", "cancelled"):
                return None
            if now.has_ended or now.gathering is not None:
                raise ApiError(f"Batch {batch_id} is {now.status}: it cannot be cancelled.", code="invalid_batch_state")
            return cancel

        return self.change(batch_id, decide)
