"""The bytes of files: equal ones lie once, and go with the last file that is of them.

    bytes/NAME                        the bytes; NAME is an id that was given for them alone
    sha256/DIGEST/log/00000000 ...    which files hold such bytes, and under which name these lie
    open/bytes/NAME                   that some came, put before them
    open/bytes/NAME.FILE.DIGEST.OLD   that they replace damaged bytes, which lie under the name OLD
    open/bytes/NAME.FILE.DIGEST       and of which file they are to be, put before it holds them; both are gone
                                      when that is settled

The log decides: of two who bring the same at once, one finds that they are there already, and drops his own.
And who comes when the last file has released them brings new ones, for those under the old name go: so nobody
ever holds what another is about to delete.

What was cut off in between is told by its mark, and swept a day later.
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
from assay.serving.ids import is_id, made_s
from assay.store.logs.entry_log import EntryLog, LogKind
from assay.store.objects import ObjectStore, copy_object

_OPEN = "open/bytes/"
_BLOCK_BYTES = 1 << 20
ABANDONED_S = 86_400.0
"""Nobody uploads one file for so long."""


class ByteSink:
    """Bytes on their way into the store; the digest and the count go along. Ends by `finish` or `abandon`."""

    def __init__(self, store: ObjectStore, key: str, abandoned: Callable[[], None] = lambda: None) -> None:
        """`abandoned` is called when nothing comes of them."""
        self.num_bytes = 0
        self._abandoned = abandoned
        self._digest = hashlib.sha256()
        self._opened: AbstractContextManager[IO[bytes]] = store.open_writer(key)
        self._writer = self._opened.__enter__()

    def finish(self) -> None:
        """Make what was written durable."""
        self._opened.__exit__(None, None, None)

    def abandon(self, error: BaseException) -> None:
        """Leave nothing behind."""
        with suppress(BaseException):
            self._opened.__exit__(type(error), error, error.__traceback__)
        with suppress(StoreError):
            self._abandoned()

    def write(self, data: bytes) -> None:
        """One block more."""
        self._writer.write(data)
        self._digest.update(data)
        self.num_bytes += len(data)

    @property
    def sha256(self) -> str:
        """The digest of all that was written."""
        return self._digest.hexdigest()


class _Held(NamedTuple):
    """Who holds bytes of one digest."""

    content: str
    """Under which name they lie, or lay when somebody held them last."""
    holders: frozenset[str]


def _fold(state: _Held | None, entry: BytesEntry) -> _Held:
    holders = frozenset[str]() if state is None else state.holders
    if isinstance(entry, BytesHeld):
        return _Held(entry.content, holders | {entry.file_id})
    assert state is not None, "nobody releases what nobody held"
    return state._replace(holders=holders - {entry.file_id})


_BYTES_LOG: LogKind[BytesEntry, _Held] = LogKind("log of held bytes", BYTES_ENTRIES, _fold)


class HeldBytes:
    """All bytes of a store's files."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._log = lru_cache(maxsize=256)(self._new_log)
        """By digest: what is uploaded again and again has a long one."""

    def sink(self, name: str) -> ByteSink:
        """Where bytes go that nobody holds yet."""
        mark = f"{_OPEN}{name}"
        self._store.put(mark, b"")
        return ByteSink(self._store, bytes_key(name), lambda: self._store.delete(mark))

    def hold(self, name: str, *, file_id: str, sha256: str) -> str:
        """Have a file hold what came under a name; the name under which such bytes lie. Then comes `settle`.

        Where the bytes that lie there are damaged or gone, those that came replace them, for all who hold them.
        """
        self._store.put(f"{_OPEN}{name}.{file_id}.{sha256}", b"")

        def decide(now: _Held | None) -> BytesEntry | None:
            if now is not None and file_id in now.holders:
                return None
            content = now.content if now is not None and now.holders else name
            return BytesHeld(at_s=self._clock.now_s(), file_id=file_id, content=content)

        held = self._log(sha256).append(decide)
        assert held is not None
        came, there = bytes_key(name), bytes_key(held.content)
        if stored_sha256(self._store, there) != sha256 == stored_sha256(self._store, came):
            self._store.put(f"{_OPEN}{name}.{file_id}.{sha256}.{held.content}", b"")
            copy_object(self._store, came, self._store, there)
            self.drop_unheld(held.content, sha256)
        return held.content

    def drop_unheld(self, content: str, sha256: str) -> None:
        """Delete bytes under a name that the log has nobody hold: nobody will hold them under it again."""
        held = self._log(sha256).append(lambda _: None)
        if held is None or not held.holders or held.content != content:
            self._store.delete(bytes_key(content))

    def settle(self, name: str, content: str) -> None:
        """The file that came under a name is of bytes that lie under another, or the same: drop what is too
        much."""
        if name != content:
            self._store.delete(bytes_key(name))
        for item in [*self._store.list(f"{_OPEN}{name}")]:
            self._store.delete(item.key)

    def release(self, *, file_id: str, sha256: str) -> str | None:
        """The file is gone; the name under which such bytes still lie, None where they lie no more."""

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
        """Settle what was cut off: a day after it came. `content_of` says of a file and a digest (or none)
        under which name its bytes lie; None where there is no such file."""
        before_s = self._clock.now_s() - ABANDONED_S
        marks = [item.key.removeprefix(_OPEN).split(".") for item in self._store.list(_OPEN)]
        meant = {mark[0]: (mark[1], mark[2]) for mark in marks if len(mark) == 3}
        for name in {mark[0] for mark in marks}:
            if not is_id("file", name) or made_s(name) > before_s:
                continue
            for replaced in (mark for mark in marks if mark[0] == name and len(mark) == 4):
                self.drop_unheld(replaced[3], replaced[2])
            file_id, sha256 = meant.get(name, (name, ""))
            content = content_of(file_id, sha256)
            if content is None and sha256:
                content = self.release(file_id=file_id, sha256=sha256)
            self.settle(name, content or "")
        self._store.sweep_unfinished(
            lambda _, age_s: age_s > ABANDONED_S,
            lambda folder: folder.partition("/")[0] not in ("bytes", "upload"),
        )

    def _new_log(self, sha256: str) -> EntryLog[BytesEntry, _Held]:
        return EntryLog(self._store, f"sha256/{sha256}/log", _BYTES_LOG)


def stored_sha256(store: ObjectStore, key: str) -> str:
    """The SHA-256 of an object's bytes as they are now; empty if there is no such object."""
    try:
        with store.open_reader(key) as reader:
            return sha256_of_parts(iter(partial(reader.read, _BLOCK_BYTES), b""))
    except StoreError:
        if store.exists(key):
            raise
        return ""


def bytes_key(name: str) -> str:
    """Where bytes of a name lie."""
    return f"bytes/{name}"
