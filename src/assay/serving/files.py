"""Files of the API: a blob and a log that names its owner.

    bytes/NAME               the blob, written first (see `blob_references`)
    file/ID/log/00000000     the file exists from here on
    open/file/ID             marker, written before the file expires or is deleted

An upload without a log entry is not a file; its bytes are swept after a day.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import IO, Any

from assay.base.clock import Clock
from assay.base.errors import DamagedDataError
from assay.records.uploaded_file import FILE_ENTRIES, FileClaimed, FileCreated, FileEntry, FileRemoved
from assay.serving.api_error import ApiError
from assay.serving.blob_references import BlobReferences, ByteSink, bytes_key, stored_sha256
from assay.serving.idempotency_keys import IdempotentRepository
from assay.serving.repository import ResourceState, resource_log
from assay.store.objects import ObjectStore

BLOCK_BYTES = 1 << 20


class FileDamagedError(DamagedDataError):
    """The stored bytes of a file differ from the upload, or are missing. It must be uploaded again."""


@dataclass(frozen=True)
class FileState(ResourceState[FileCreated]):
    """State of a file, folded from its log."""

    def changes(self, entry: FileEntry) -> dict[str, Any]:
        assert isinstance(entry, FileRemoved), entry
        return {"is_deleted": True}

    def is_available(self, now_s: float) -> bool:
        """Return whether the file is neither deleted nor expired."""
        expires_s = self.created.expires_s
        return not self.is_deleted and (expires_s is None or now_s < expires_s)


class FileRepository(IdempotentRepository[FileEntry, FileState]):
    """Files in an object store."""

    id_kind = "file"
    log_kind = resource_log("file's log", FILE_ENTRIES, FileState)
    title, param, id_field = "file", "file_id", "file_id"
    claimed = FileClaimed

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        super().__init__(store, clock)
        self._bytes = BlobReferences(store, clock)

    def _is_found(self, state: FileState, project: str) -> bool:
        return state.created.project == project and state.is_available(self._clock.now_s())

    def usable(self, file_id: str, project: str, *, purpose: str, param: str, users: str) -> FileCreated:
        """Return a file that a request names in `param`. Raises `ApiError` if it is missing or has another purpose.

        `users`: what requires the purpose, for messages.
        """
        state = self.find(file_id, project)
        if state is None:
            raise ApiError(f"There is no file {file_id!r:.120} in this project.", param=param, code="file_not_found")
        if state.created.purpose != purpose:
            raise ApiError(
                f"File {file_id} has purpose '{state.created.purpose}'; {users} require purpose '{purpose}'. Upload it "
                "again with this purpose.",
                param=param,
                code="invalid_file_purpose",
            )
        return state.created

    def sink(self, name: str) -> ByteSink:
        """Open a sink for a file's bytes; `put` makes them a file. `name`: `created.content`."""
        return self._bytes.sink(name)

    def put(self, created: FileEntry) -> FileState:
        """Create a file from uploaded bytes; idempotent for the same id."""
        assert isinstance(created, FileCreated), created
        file_id, name = created.file_id, created.content
        if (state := self.state(file_id)) is None:
            content = self._bytes.hold(name, file_id=file_id, sha256=created.sha256)
            if created.expires_s is not None:
                self.open(file_id)
            state = super().put(created.model_copy(update={"content": content}))
            if state.is_deleted or state.created.content != content:
                # A concurrent request created the file first, with other bytes, or it was deleted since.
                self._bytes.release(file_id=file_id, sha256=created.sha256)
            if state.is_deleted:
                self.unlist(state)
        self.drop(name, state.created)
        return state

    def drop(self, name: str, file: FileCreated) -> None:
        """Delete bytes uploaded as `name` if `file` stores others."""
        self._bytes.settle(name, file.content)

    def remove(self, file_id: str) -> None:
        """Delete a file; its bytes are deleted unless another file shares them."""
        self.open(file_id)
        removed = FileRemoved(at_s=self._clock.now_s())
        state = self.log(file_id).append(lambda now: None if now is None or now.is_deleted else removed)
        if state is not None:
            self._forget(state)

    def sweep(self) -> None:
        """Delete bytes of expired files, of interrupted deletions, and of uploads that never became files."""
        for _, state in self.states(self.open_ids()):
            if not state.is_available(self._clock.now_s()):
                self._forget(state)
        self._bytes.sweep(self._content_of)

    def _forget(self, state: FileState) -> None:
        created = state.created
        self.unlist(state)
        self._bytes.release(file_id=created.file_id, sha256=created.sha256)
        self._bytes.drop_unheld(created.content, created.sha256)  # a release may have been interrupted
        self.close(created.file_id)

    def _content_of(self, file_id: str, sha256: str) -> str | None:
        state = self.state(file_id)
        if state is None or not state.is_available(self._clock.now_s()):
            return None
        return state.created.content if sha256 in ("", state.created.sha256) else None

    def blocks(self, file_id: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes [begin, end). Raises `FileDamagedError` first if any byte of the file changed."""
        with self._reader(file_id) as reader:
            reader.seek(begin)
            num_left = BLOCK_BYTES if end is None else end - begin
            while block := reader.read(min(BLOCK_BYTES, num_left)):
                num_left -= 0 if end is None else len(block)
                yield block

    def lines(self, file_id: str) -> Iterator[bytes]:
        """Yield the lines. Raises `FileDamagedError` first if any byte changed."""
        with self._reader(file_id) as reader:
            yield from reader

    def _reader(self, file_id: str) -> AbstractContextManager[IO[bytes]]:
        state = self.state(file_id)
        assert state is not None, f"{file_id} was found before"
        key, uploaded = bytes_key(state.created.content), state.created.sha256
        if (found := stored_sha256(self.store, key)) != uploaded:
            now = f"have sha256 {found[:12]}…, and had {uploaded[:12]}… at the upload" if found else "are gone"
            raise FileDamagedError(f"File {file_id} is damaged: its bytes {now}. Upload it again.")
        return self.store.open_reader(key)
