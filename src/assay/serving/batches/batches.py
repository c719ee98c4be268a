r"""Batches: the requests of a file, answered in chunks, each put once, whoever dies.

batch/ID/log/...                 what happened to it
batch/ID/answers/00000000.json   the answers to its first requests, put only if absent; they go once the batch
                                 has its files

validating --> in_progress --> finalizing --> completed | expired
     \--> failed      \--> cancelling --> cancelled
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from assay.base.clock import Clock
from assay.records.batch import (
    BATCH_ENTRIES,
    BatchAnswered,
    BatchCancelAsked,
    BatchChunk,
    BatchClaimed,
    BatchCreated,
    BatchEnded,
    BatchEntry,
    BatchFailed,
    BatchGathering,
    BatchRead,
    BatchTaken,
)
from assay.serving.chunks import Chunks
from assay.serving.job_repository import Shelf
from assay.serving.refusal import RefusedError
from assay.store.logs.entry_log import LogKind
from assay.store.objects import ObjectStore

BatchStatus = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]


@dataclass(frozen=True)
class BatchState:
    """A batch as its entries say."""

    created: BatchCreated
    lease: int = 0
    """The number of the newest lease: what is appended under another is refused."""
    read: BatchRead | None = None
    answered: tuple[BatchAnswered, ...] = ()
    """In the order of their requests."""
    cancel_asked: BatchCancelAsked | None = None
    gathering: BatchGathering | None = None
    failed: BatchFailed | None = None
    ended: BatchEnded | None = None
    claim: int = 0
    """The number of the last repeat of its request that was answered with it."""

    @property
    def status(self) -> BatchStatus:
        """As the API has it."""
        if self.failed is not None:
            return "failed"
        if self.gathering is not None and self.ended is not None:
            return self.gathering.outcome
        if self.cancel_asked is not None:
            return "cancelling"
        if self.gathering is not None:
            return "finalizing"
        return "validating" if self.read is None else "in_progress"

    @property
    def has_ended(self) -> bool:
        """Whether nothing comes of it any more."""
        return self.failed is not None or self.ended is not None

    @property
    def ended_s(self) -> float | None:
        """When that was."""
        last = self.failed or self.ended
        return None if last is None else last.at_s

    @property
    def num_chunks(self) -> int:
        """Chunks of all requests; 0 while they are not read."""
        return 0 if self.read is None else -(-self.read.num_requests // self.read.chunk_requests)

    @property
    def wants_chunk(self) -> bool:
        """Whether what is to be done next is to answer requests, which is charged."""
        is_over = self.has_ended or self.cancel_asked is not None or self.gathering is not None
        return not is_over and self.num_made < self.num_chunks

    @property
    def charges(self) -> tuple[BatchAnswered, ...]:
        """What its chunks cost."""
        return self.answered

    @property
    def is_settled(self) -> bool:
        """Whether it costs nothing more."""
        return self.has_ended

    @property
    def num_made(self) -> int:
        """Chunks that are answered."""
        return len(self.answered)

    @property
    def num_answered(self) -> int:
        """Requests that were answered, or refused."""
        return sum(each.completed + each.failed for each in self.answered)


def fold_batch(state: BatchState | None, entry: BatchEntry) -> BatchState:
    """The state behind one more entry."""
    if isinstance(entry, BatchCreated):
        assert state is None, "a batch is created once"
        return BatchState(entry)
    assert state is not None
    return replace(state, **_changes(state, entry))


def _changes(state: BatchState, entry: BatchEntry) -> dict[str, Any]:
    match entry:
        case BatchTaken():
            return {"lease": entry.lease}
        case BatchRead():
            return {"read": entry}
        case BatchAnswered():
            return {"answered": (*state.answered, entry)}
        case BatchCancelAsked():
            return {"cancel_asked": entry}
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


class BatchShelf:
    """All batches of a store."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self.shelf: Shelf[BatchEntry, BatchState] = Shelf(store, "batch", BATCH_LOG, is_worked_at=True)
        self.chunks = Chunks(store, "batch", "answers", BatchChunk)
        self._clock = clock

    def put(self, created: BatchCreated) -> BatchState:
        """Make a batch; made twice it is made once."""
        return self.shelf.begin(created.batch_id, created)

    def find(self, batch_id: str, project: str) -> BatchState | None:
        """The batch, if it is there and the project's."""
        state = self.shelf.state(batch_id)
        return state if state is not None and state.created.project == project else None

    def cancel(self, batch_id: str) -> BatchState:
        """Have nothing more answered; one that is being cancelled already is answered with as it is."""
        asked = BatchCancelAsked(at_s=self._clock.now_s())

        def decide(now: BatchState | None) -> BatchEntry | None:
            assert now is not None, f"{batch_id} was found before"
            if now.cancel_asked is not None and now.status in ("cancelling", "cancelled"):
                return None
            if now.has_ended or now.gathering is not None:
                raise RefusedError(
                    f"Batch {batch_id} is {now.status}: it cannot be cancelled.", code="invalid_batch_state"
                )
            return asked

        state = self.shelf.log(batch_id).append(decide)
        assert state is not None
        return state
