"""Resources that are processed in chunks: one object per chunk, put if absent, then listed in the log.

    KIND/ID/NAME/00000000.json

If two workers process the same chunk, the first result counts, and so does its cost.
"""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from assay.records.log_entry import Charged
from assay.serving.idempotency_keys import IdempotentRepository
from assay.serving.repository import CreatedT, ResourceState
from assay.store.logs.entry import EntryT

ChunkT = TypeVar("ChunkT", bound=Charged)
NoteT = TypeVar("NoteT")
"""The log entry of a chunk."""


@dataclass(frozen=True)
class ChunkedState(ResourceState[CreatedT], Generic[CreatedT, NoteT]):
    """State of a resource that is processed in chunks."""

    lease: int = 0
    """Number of the newest lease; entries of older leases are rejected."""
    charges: tuple[NoteT, ...] = ()
    """The logged chunks, in order; each is charged."""

    @property
    def has_ended(self) -> bool:
        raise NotImplementedError

    @property
    def num_chunks(self) -> int:
        """Total number of chunks; 0 before the input was read."""
        raise NotImplementedError

    @property
    def needs_chunk(self) -> bool:
        """Whether the next step processes a chunk, which is charged."""
        return not self.has_ended and self.num_done < self.num_chunks

    @property
    def has_final_cost(self) -> bool:
        return self.has_ended

    @property
    def num_done(self) -> int:
        """Logged chunks."""
        return len(self.charges)


ChunkedStateT = TypeVar("ChunkedStateT", bound=ChunkedState[Any, Any])


class ChunkedRepository(IdempotentRepository[EntryT, ChunkedStateT], Generic[EntryT, ChunkedStateT, ChunkT]):
    """Resources of one kind with their chunks."""

    chunk_class: type[ChunkT]
    chunk_folder: str
    """Name of the folder that holds a resource's chunks."""
    tracks_open = True

    def find_chunk(self, resource_id: str, number: int) -> ChunkT | None:
        key = self._chunk_key(resource_id, number)
        return self.chunk_class.from_json(self.store.get(key), source=key) if self.store.exists(key) else None

    def put_chunk(self, resource_id: str, number: int, chunk: ChunkT) -> ChunkT:
        """Store a chunk; return the stored one, which may be another worker's."""
        key = self._chunk_key(resource_id, number)
        if self.store.put_if_absent(key, chunk.to_sealed_json().encode()):
            return chunk
        return self.chunk_class.from_json(self.store.get(key), source=key)

    def forget_chunks(self, resource_id: str) -> None:
        """Delete all chunks of a resource; idempotent."""
        for item in [*self.store.list(f"{self.id_kind}/{resource_id}/{self.chunk_folder}/")]:
            self.store.delete(item.key)

    def _chunk_key(self, resource_id: str, number: int) -> str:
        return f"{self.id_kind}/{resource_id}/{self.chunk_folder}/{number:08d}.json"
