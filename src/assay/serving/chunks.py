"""What comes of things that are worked at piece by piece: each piece an object, put only if absent.

    KIND/ID/NAME/00000000.json

Whoever comes second finds the first one's, and that counts: what it says, and what it cost.
"""

from typing import Generic, TypeVar

from assay.records.charge import Charged
from assay.serving.ids import IdKind
from assay.store.objects import ObjectStore

ChunkT = TypeVar("ChunkT", bound=Charged)


class Chunks(Generic[ChunkT]):
    """Those of all things of one kind."""

    def __init__(self, store: ObjectStore, id_kind: IdKind, name: str, record_class: type[ChunkT]) -> None:
        """`name`: of the folder in which a thing has them."""
        self._store = store
        self._id_kind = id_kind
        self._name = name
        self._record_class = record_class

    def find(self, an_id: str, number: int) -> ChunkT | None:
        """One that is there; None where it is not."""
        key = self._key(an_id, number)
        return self._read(key) if self._store.exists(key) else None

    def put(self, an_id: str, number: int, chunk: ChunkT) -> ChunkT:
        """Have one there; the one that counts, which is another's where he was first."""
        key = self._key(an_id, number)
        if self._store.put_if_absent(key, chunk.to_sealed_json().encode()):
            return chunk
        return self._read(key)

    def forget(self, an_id: str) -> None:
        """Delete a thing's; whoever is cut off in this does it again."""
        for item in [*self._store.list(self._folder(an_id))]:
            self._store.delete(item.key)

    def _read(self, key: str) -> ChunkT:
        return self._record_class.from_json(self._store.get(key), source=key)

    def _key(self, an_id: str, number: int) -> str:
        return f"{self._folder(an_id)}{number:08d}.json"

    def _folder(self, an_id: str) -> str:
        return f"{self._id_kind}/{an_id}/{self._name}/"
