"""Files of the API: a blob and a log that names its owner.

    bytes/NAME               the blob, written first (see `blob_references`)
    file/ID/log/00000000     the file exists from here on
    open/file/ID             marker, written before the file expires or is deleted

An upload without a log entry is not a file; its bytes are swept after a day.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import IO

from assay.base.clock import Clock
from assay.base.errors import DamagedDataError
from assay.records.uploaded_file import FILE_ENTRIES, FileClaimed, FileCreated, FileEntry, FileRemoved
from assay.serving.blob_references import BlobReferences, ByteSink, bytes_key, stored_sha256
from assay.serving.log_repository import LogRepository
from assay.store.logs.entry_log import LogKind
from assay.store.objects import ObjectStore

BLOCK_BYTES = 1 << 20


class FileDamagedError(DamagedDataError):
    """The stored bytes of a file differ from the upload, or are missing. It must be uploaded again."""


@dataclass(frozen=True)
class FileState:
    """State of a file, folded from its log."""

    created: FileCreated
    removed: FileRemoved | None = None
    claim: int = 0
    """Highest retry count of its create request that was answered with this file."""

    def is_available(self, now_s: float) -> bool:
        """Return whether the file is neither deleted nor expired."""
        expires_s = self.created.expires_s
        return self.removed is None and (expires_s is None or now_s < expires_s)


def fold_file(state: FileState | None, entry: FileEntry) -> FileState:
    """Return the state after one more log entry."""
    if isinstance(entry, FileCreated):
        assert state is None, "a file is created once"
        return FileState(entry)
    assert state is not None
    if isinstance(entry, FileClaimed):
        return replace(state, claim=max(state.claim, entry.retry_count))
    return replace(state, removed=state.removed or entry)


FILE_LOG: LogKind[FileEntry, FileState] = LogKind("file's log", FILE_ENTRIES, fold_file)


class FileRepository:
    """Files in an object store."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self.logs: LogRepository[FileEntry, FileState] = LogRepository(store, "file", FILE_LOG, tracks_open=False)
        self._bytes = BlobReferences(store, clock)
        self._store = store
        self._clock = clock

    def sink(self, name: str) -> ByteSink:
        """Open a sink for a file's bytes; `put` makes them a file. `name`: `created.content`."""
        return self._bytes.sink(name)

    def put(self, created: FileCreated) -> FileState:
        """Create a file from uploaded bytes; idempotent for the same id."""
        file_id, name = created.file_id, created.content
        if (state := self.logs.state(file_id)) is None:
            content = self._bytes.hold(name, file_id=file_id, sha256=created.sha256)
            if created.expires_s is not None:
                self.logs.open(file_id)
            state = self.logs.begin(file_id, created.model_copy(update={"content": content}))
            if state.removed is not None or state.created.content != content:
                # A concurrent request created the file first, with other bytes, or it was deleted since.
                self._bytes.release(file_id=file_id, sha256=created.sha256)
            if state.removed is not None:
                self.logs.unlist(file_id, created.project)
        self.drop(name, state.created)
        return state

    def drop(self, name: str, file: FileCreated) -> None:
        """Delete bytes uploaded as `name` if `file` stores others."""
        self._bytes.settle(name, file.content)

    def find(self, file_id: str, project: str) -> FileCreated | None:
        """Return the file if it belongs to `project` and is available."""
        state = self.logs.state(file_id)
        if state is None or state.created.project != project or not state.is_available(self._clock.now_s()):
            return None
        return state.created

    def remove(self, file_id: str) -> None:
        """Delete a file; its bytes are deleted unless another file shares them."""
        self.logs.open(file_id)
        removed = FileRemoved(at_s=self._clock.now_s())
        state = self.logs.log(file_id).append(lambda now: None if now is None or now.removed else removed)
        if state is not None:
            self._forget(state.created)

    def sweep(self) -> None:
        """Delete bytes of expired files, of interrupted deletions, and of uploads that never became files."""
        for file_id in self.logs.open_ids():
            state = self.logs.state(file_id)
            if state is not None and not state.is_available(self._clock.now_s()):
                self._forget(state.created)
        self._bytes.sweep(self._content_of)

    def _forget(self, created: FileCreated) -> None:
        self.logs.unlist(created.file_id, created.project)
        self._bytes.release(file_id=created.file_id, sha256=created.sha256)
        self._bytes.drop_unheld(created.content, created.sha256)  # a release may have been interrupted
        self.logs.close(created.file_id)

    def _content_of(self, file_id: str, sha256: str) -> str | None:
        state = self.logs.state(file_id)
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
        state = self.logs.state(file_id)
        assert state is not None, f"{file_id} was found before"
        key, uploaded = bytes_key(state.created.content), state.created.sha256
        if (found := stored_sha256(self._store, key)) != uploaded:
            now = f"have sha256 {found[:12]}…, and had {uploaded[:12]}… at the upload" if found else "are gone"
            raise FileDamagedError(f"File {file_id} is damaged: its bytes {now}. Upload it again.")
        return self._store.open_reader(key)
