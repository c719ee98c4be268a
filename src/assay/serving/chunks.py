"""Results of resources that are processed in chunks: one object per chunk, put if absent.

    KIND/ID/NAME/00000000.json

If two workers process the same chunk, the first result counts, and so does its cost.
"""

from typing import Generic, TypeVar

from assay.records.charge import Charged
from assay.serving.ids import IdKind
from assay.store.objects import ObjectStore

ChunkT = TypeVar("ChunkT", bound=Charged)


class Chunks(Generic[ChunkT]):
    """Chunks of all resources of one kind."""

    def __init__(self, store: ObjectStore, id_kind: IdKind, name: str, record_class: type[ChunkT]) -> None:
        """`name`: of the folder that holds a resource's chunks."""
        self._store = store
        self._id_kind = id_kind
        self._name = name
        self._record_class = record_class

    def find(self, resource_id: str, number: int) -> ChunkT | None:
        key = self._key(resource_id, number)
        return self._read(key) if self._store.exists(key) else None

    def put(self, resource_id: str, number: int, chunk: ChunkT) -> ChunkT:
        """Store a chunk; return the stored one, which may be another worker's."""
        key = self._key(resource_id, number)
        if self._store.put_if_absent(key, chunk.to_sealed_json().encode()):
            return chunk
        return self._read(key)

    def forget(self, resource_id: str) -> None:
        """Delete all chunks of a resource; idempotent."""
        for item in [*self._store.list(self._folder(resource_id))]:
            self._store.delete(item.key)

    def _read(self, key: str) -> ChunkT:
        return self._record_class.from_json(self._store.get(key), source=key)

    def _key(self, resource_id: str, number: int) -> str:
        return f"{self._folder(resource_id)}{number:08d}.json"

    def _folder(self, resource_id: str) -> str:
        return f"{self._id_kind}/{resource_id}/{self._name}/"
