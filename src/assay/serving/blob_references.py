"""Reference-counted blobs: files with equal bytes share one blob, which is deleted with the last file.

    bytes/NAME                        a blob; NAME is an id of its own
    sha256/DIGEST/log/00000000 ...    the files that hold a blob with this digest, and its NAME
    open/bytes/NAME                   marker of an upload, written before the bytes
    open/bytes/NAME.FILE.DIGEST       marker of a reference, written before it is taken
    open/bytes/NAME.FILE.DIGEST.OLD   marker of a replacement of the damaged blob OLD

The log decides races. If two clients upload equal bytes at once, the second finds the first blob and drops its
own. After the last file released a blob, the next upload gets a new NAME, so a blob that is about to be deleted
is never referenced again. Markers of interrupted uploads are swept after a day.
"""

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import lru_cache, partial
from typing import IO, NamedTuple

from assay.base.clock import Clock
from assay.base.digest import sha256_of_parts
from assay.base.errors import StoreError
from assay.records.uploaded_file import BYTES_ENTRIES, BytesEntry, BytesHeld, BytesReleased
from assay.serving.ids import created_s, is_id
from assay.store.logs.entry_log import EntryLog, LogKind
from assay.store.objects import ObjectStore, copy_object

_OPEN = "open/bytes/"
_BLOCK_BYTES = 1 << 20
STALE_UPLOAD_S = 86_400.0
"""An upload marker older than this belongs to an interrupted upload."""


class ByteSink:
    """A writer into the store that also computes digest and size. Ends with `finish` or `abort`."""

    def __init__(self, store: ObjectStore, key: str, abandoned: Callable[[], None] = lambda: None) -> None:
        """`aborted` is called if the write is aborted."""
        self.num_bytes = 0
        self._on_abort = abandoned
        self._digest = hashlib.sha256()
        self._opened: AbstractContextManager[IO[bytes]] = store.open_writer(key)
        self._writer = self._opened.__enter__()

    def finish(self) -> None:
        """Make the written bytes durable."""
        self._opened.__exit__(None, None, None)

    def abort(self, error: BaseException) -> None:
        """Discard the written bytes."""
        with suppress(BaseException):
            self._opened.__exit__(type(error), error, error.__traceback__)
        with suppress(StoreError):
            self._on_abort()

    def write(self, data: bytes) -> None:
        self._writer.write(data)
        self._digest.update(data)
        self.num_bytes += len(data)

    @property
    def sha256(self) -> str:
        """Hex digest of all bytes so far."""
        return self._digest.hexdigest()


class _Held(NamedTuple):
    """References of one digest."""

    content: str
    """Name of the current blob, or of the last one if no file holds it."""
    holders: frozenset[str]


def _fold(state: _Held | None, entry: BytesEntry) -> _Held:
    holders = frozenset[str]() if state is None else state.holders
    if isinstance(entry, BytesHeld):
        return _Held(entry.content, holders | {entry.file_id})
    assert state is not None, "nobody releases what nobody held"
    return state._replace(holders=holders - {entry.file_id})


_BYTES_LOG: LogKind[BytesEntry, _Held] = LogKind("log of held bytes", BYTES_ENTRIES, _fold)


class BlobReferences:
    """Blobs of a store's files and their references."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._log = lru_cache(maxsize=256)(self._new_log)
        """By digest. Cached, because the log of often uploaded bytes is long."""

    def sink(self, name: str) -> ByteSink:
        """Open a sink for a new blob."""
        mark = f"{_OPEN}{name}"
        self._store.put(mark, b"")
        return ByteSink(self._store, bytes_key(name), lambda: self._store.delete(mark))

    def hold(self, name: str, *, file_id: str, sha256: str) -> str:
        """Reference the bytes uploaded as `name`; return the name of the blob that stores them.

        If the existing blob is damaged or missing, the uploaded bytes replace it for all holders. Call `settle` next.
        """
        self._store.put(f"{_OPEN}{name}.{file_id}.{sha256}", b"")

        def decide(now: _Held | None) -> BytesEntry | None:
            if now is not None and file_id in now.holders:
                return None
            content = now.content if now is not None and now.holders else name
            return BytesHeld(at_s=self._clock.now_s(), file_id=file_id, content=content)

        held = self._log(sha256).append(decide)
        assert held is not None
        uploaded_key, stored_key = bytes_key(name), bytes_key(held.content)
        if stored_sha256(self._store, stored_key) != sha256 == stored_sha256(self._store, uploaded_key):
            self._store.put(f"{_OPEN}{name}.{file_id}.{sha256}.{held.content}", b"")
            copy_object(self._store, uploaded_key, self._store, stored_key)
            self.drop_unheld(held.content, sha256)
        return held.content

    def drop_unheld(self, content: str, sha256: str) -> None:
        """Delete a blob without references; its name is never referenced again."""
        held = self._log(sha256).append(lambda _: None)
        if held is None or not held.holders or held.content != content:
            self._store.delete(bytes_key(content))

    def settle(self, name: str, content: str) -> None:
        """Delete the upload `name` if another blob stores its bytes, and remove its markers."""
        if name != content:
            self._store.delete(bytes_key(name))
        for item in [*self._store.list(f"{_OPEN}{name}")]:
            self._store.delete(item.key)

    def release(self, *, file_id: str, sha256: str) -> str | None:
        """Remove a file's reference; return the name of the remaining blob, None if it was the last."""

        def decide(now: _Held | None) -> BytesEntry | None:
            is_held = now is not None and file_id in now.holders
            return BytesReleased(at_s=self._clock.now_s(), file_id=file_id) if is_held else None

        held = self._log(sha256).append(decide)
        if held is None:
            return None
        if not held.holders:
            self._store.delete(bytes_key(held.content))
        return held.content if held.holders else None

    def sweep(self, content_of: Callable[[str, str], str | None]) -> None:
        """Finish interrupted uploads and releases that are older than a day.

        `content_of`: (file id, digest or empty) -> name of the file's blob, None if there is no such file.
        """
        before_s = self._clock.now_s() - STALE_UPLOAD_S
        marks = [item.key.removeprefix(_OPEN).split(".") for item in self._store.list(_OPEN)]
        targets = {mark[0]: (mark[1], mark[2]) for mark in marks if len(mark) == 3}
        for name in {mark[0] for mark in marks}:
            if not is_id("file", name) or created_s(name) > before_s:
                continue
            for replaced in (mark for mark in marks if mark[0] == name and len(mark) == 4):
                self.drop_unheld(replaced[3], replaced[2])
            file_id, sha256 = targets.get(name, (name, ""))
            content = content_of(file_id, sha256)
            if content is None and sha256:
                content = self.release(file_id=file_id, sha256=sha256)
            self.settle(name, content or "")
        self._store.sweep_unfinished(
            lambda _, age_s: age_s > STALE_UPLOAD_S, lambda folder: folder.partition("/")[0] not in ("bytes", "upload")
        )

    def _new_log(self, sha256: str) -> EntryLog[BytesEntry, _Held]:
        return EntryLog(self._store, f"sha256/{sha256}/log", _BYTES_LOG)


def stored_sha256(store: ObjectStore, key: str) -> str:
    """Return the SHA-256 of a stored object; empty if it does not exist."""
    try:
        with store.open_reader(key) as reader:
            return sha256_of_parts(iter(partial(reader.read, _BLOCK_BYTES), b""))
    except StoreError:
        if store.exists(key):
            raise
        return ""


def bytes_key(name: str) -> str:
    """Return the store key of a blob."""
    return f"bytes/{name}"
