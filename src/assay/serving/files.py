"""Files of the API: bytes that were streamed into the store, and a log that says whose they are.

    file/ID/content          the bytes, put first
    file/ID/log/00000000     the file: from now on it is there

What was cut off before its entry is no file; nobody sees it, and a server that starts a day later sweeps its
bytes.
"""

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import IO

from assay.base.clock import Clock
from assay.records.uploaded_file import FILE_ENTRIES, FileClaimed, FileCreated, FileEntry, FileRemoved
from assay.serving.ids import is_id, made_s
from assay.serving.shelf import Shelf
from assay.store.logs.entry_log import LogKind
from assay.store.objects import ObjectStore

BLOCK_BYTES = 1 << 20
ABANDONED_S = 86_400.0
"""Nobody uploads one file for so long."""


@dataclass(frozen=True)
class FileState:
    """A file as its entries say."""

    created: FileCreated
    removed: FileRemoved | None = None
    claim: int = 0
    """The number of the last repeat of its request that was answered with it."""

    def is_there(self, now_s: float) -> bool:
        """Whether it was neither deleted nor has expired."""
        expires_s = self.created.expires_s
        return self.removed is None and (expires_s is None or now_s < expires_s)


def fold_file(state: FileState | None, entry: FileEntry) -> FileState:
    """The state behind one more entry."""
    if isinstance(entry, FileCreated):
        assert state is None, "a file is created once"
        return FileState(entry)
    assert state is not None
    if isinstance(entry, FileClaimed):
        return replace(state, claim=max(state.claim, entry.retry_count))
    return replace(state, removed=state.removed or entry)


FILE_LOG: LogKind[FileEntry, FileState] = LogKind("file's log", FILE_ENTRIES, fold_file)


class FileSink:
    """Bytes on their way into the store; the digest and the count go along. Ends by `finish` or `abandon`."""

    def __init__(self, store: ObjectStore, file_id: str) -> None:
        self.num_bytes = 0
        self._digest = hashlib.sha256()
        self._opened: AbstractContextManager[IO[bytes]] = store.open_writer(_content_key(file_id))
        self._writer = self._opened.__enter__()

    def finish(self) -> None:
        """Make what was written durable."""
        self._opened.__exit__(None, None, None)

    def abandon(self, error: BaseException) -> None:
        """Leave nothing behind."""
        with suppress(BaseException):
            self._opened.__exit__(type(error), error, error.__traceback__)

    def write(self, data: bytes) -> None:
        """One block more."""
        self._writer.write(data)
        self._digest.update(data)
        self.num_bytes += len(data)

    @property
    def sha256(self) -> str:
        """The digest of all that was written."""
        return self._digest.hexdigest()


class FileShelf:
    """All files of a store."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self.shelf: Shelf[FileEntry, FileState] = Shelf(store, "file", FILE_LOG, is_worked_at=False)
        self._store = store
        self._clock = clock

    def sink(self, file_id: str) -> FileSink:
        """Where the bytes of a new file go; they are a file once `created` was put."""
        return FileSink(self._store, file_id)

    def put(self, created: FileCreated) -> FileState:
        """Make a file of bytes that are there; made twice it is made once."""
        return self.shelf.begin(created.file_id, created)

    def find(self, file_id: str, project: str) -> FileCreated | None:
        """The file, if it is there and the project's."""
        state = self.shelf.state(file_id)
        if state is None or state.created.project != project or not state.is_there(self._clock.now_s()):
            return None
        return state.created

    def remove(self, file_id: str) -> None:
        """Delete a file; its bytes go once that is durable."""
        removed = FileRemoved(at_s=self._clock.now_s())
        self.shelf.log(file_id).append(lambda state: None if state is None or state.removed else removed)
        self.drop_content(file_id)

    def drop_content(self, file_id: str) -> None:
        """Delete bytes that are no file, or none any more."""
        self._store.delete(_content_key(file_id))

    def sweep(self) -> None:
        """Delete bytes that never became a file, or whose deletion was cut short: a day after they came."""
        before_s = self._clock.now_s() - ABANDONED_S
        for item in [*self._store.list("file/")]:
            _, file_id, name = (*item.key.split("/", 2), "", "")[:3]
            if name != "content" or not is_id("file", file_id) or made_s(file_id) > before_s:
                continue
            state = self.shelf.state(file_id)
            if state is None or state.removed is not None:
                self._store.delete(item.key)
        self._store.sweep_unfinished(
            lambda folder, age_s: age_s > ABANDONED_S, lambda folder: folder.partition("/")[0] != "file"
        )

    def blocks(self, file_id: str) -> Iterator[bytes]:
        """The bytes, block by block."""
        with self._store.open_reader(_content_key(file_id)) as reader:
            while block := reader.read(BLOCK_BYTES):
                yield block

    def lines(self, file_id: str) -> Iterator[bytes]:
        """The bytes, line by line."""
        with self._store.open_reader(_content_key(file_id)) as reader:
            yield from reader


def _content_key(file_id: str) -> str:
    return f"file/{file_id}/content"
