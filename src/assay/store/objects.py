"""Objects by key, in a folder, in S3 (GCS, Azure) or in memory: the only way that durable bytes are written.

Writes appear whole or not at all. `put_if_absent` is atomic: of two writers, one is told that it lost. In a
folder, a finished write is on the disk (fsync of the file and of its folder), since a commit rests on it.
"""

import errno
import io
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import MemoryStore, from_url

from assay.base.errors import StoreAwayError, StoreError, StoreFullError, no_room
from assay.base.shown_url import without_secrets
from assay.store import range_reader
from assay.store.keys import UNFINISHED, require_key, require_prefix
from assay.store.patience import Answer, Patience
from assay.store.range_reader import RangeReader


class ObjectInfo(NamedTuple):
    """One object in a listing."""

    key: str
    num_bytes: int


class ObjectStore(Protocol):
    """What the rest of assay asks of a store; what may be a key says `keys`, and another is refused by all."""

    url: str

    def get(self, key: str) -> bytes:
        """The whole object."""
        ...

    def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[memoryview]:
        """The bytes [start, end) of each range."""
        ...

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Write or replace."""
        ...

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        """Write if the key is free; False if it was taken."""
        ...

    def list(self, prefix: str, after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix` and is greater than `after`, in no particular order; with a
        `limit` only so many: the first in the order of their keys, and little more than they is read."""
        ...

    def exists(self, key: str) -> bool:
        """Whether the key is taken."""
        ...

    def num_bytes(self, key: str) -> int:
        """How long the object is."""
        ...

    def delete(self, key: str) -> None:
        """Remove; no error if it was not there."""
        ...

    def sweep_unfinished(self, is_dead: Callable[[str, float], bool], is_swept: Callable[[str], bool]) -> None:
        """Delete what writers left half-written: all that `is_dead`, told its folder and its age in seconds.
        Folders that `is_swept` are not looked into."""
        ...

    def open_reader(self, key: str) -> AbstractContextManager[IO[bytes]]:
        """A seekable file."""
        ...

    def open_writer(self, key: str) -> AbstractContextManager[IO[bytes]]:
        """A file written front to back; the object appears when the block ends without an error."""
        ...


_CLIENT = {"timeout": "30s", "connect_timeout": "3s"}
_PART_BYTES = 16 << 20
_BLOCK_BYTES = 8 << 20
_PARTS_AT_ONCE = 8
"""How many parts of a file are written at once: through within their limit at 1.1 MB/s; 10,000, all that S3
takes, are 168 GB."""
_RETRY: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}
"""The driver's own tries; `Patience` makes the others."""
_WRITER_TIMEOUT_S = 120.0
_WRITER_RETRY_S = 300.0
"""How long the writing of a file's parts is retried, if the patience is no shorter: nobody else could write
them again."""
_BACK_OFF: Any = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=10), "base": 2}


def open_store(url: str, patience: Patience | None = None) -> ObjectStore:
    """The store behind a path, `s3://bucket/prefix`, `gs://`, `az://` or `memory:`.

    S3 takes the usual AWS_* variables (AWS_ENDPOINT_URL for other servers than Amazon's). What does not answer
    is asked again for as long as `patience` says, by default $ASSAY_STORE_PATIENCE.
    """
    if url.startswith("memory:"):
        return RemoteStore(url, MemoryStore())
    patience = patience or Patience.from_environment(os.environ)
    if "://" not in url:
        return PatientStore(FolderStore(Path(url)), patience)
    http = {"allow_http": os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")}
    retry_s = min(_WRITER_RETRY_S, patience.budget_s)
    writer = {**_CLIENT, "timeout": f"{max(30.0, min(_WRITER_TIMEOUT_S, retry_s)):.0f}s"}
    writer_retry = {"max_retries": 60, "retry_timeout": timedelta(seconds=retry_s), "backoff": _BACK_OFF}
    options: list[dict[str, Any]] = [
        {"client_options": {**client, **http}, "retry_config": retry}
        for client, retry in ((_CLIENT, _RETRY), (writer, writer_retry))
    ]
    try:
        store, write_store = (from_url(url, **each) for each in options)
    except (BaseError, ValueError) as error:
        reason = str(error).splitlines()[0].replace(url, without_secrets(url))
        raise StoreError(f"{without_secrets(url)}: cannot be opened as an object store: {reason}") from None
    return PatientStore(RemoteStore(url, store, write_store), patience)


def copy_object(source: ObjectStore, key: str, to: ObjectStore, new_key: str) -> None:
    """Block by block, from one store to another or to the same one."""
    with source.open_reader(key) as reader, to.open_writer(new_key) as writer:
        while block := reader.read(_BLOCK_BYTES):
            writer.write(block)


class PatientStore:
    """Passes everything to `inner`, again and again while that is away."""

    def __init__(self, inner: ObjectStore, patience: Patience) -> None:
        self.url = inner.url
        self.patience = patience
        self._inner = inner

    def get(self, key: str) -> bytes:
        """See `ObjectStore`; so for all that follows."""
        return self._ask("read", key, lambda: self._inner.get(key))

    def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[memoryview]:
        return self._ask("read", key, lambda: self._inner.get_ranges(key, starts, ends))

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._ask("write", key, lambda: self._inner.put(key, data))

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        return self._ask("write", key, lambda: self._inner.put_if_absent(key, data))

    def list(self, prefix: str, after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        return iter(self._ask("list", prefix, lambda: [*self._inner.list(prefix, after, limit)]))

    def exists(self, key: str) -> bool:
        return self._ask("look up", key, lambda: self._inner.exists(key))

    def num_bytes(self, key: str) -> int:
        return self._ask("look up", key, lambda: self._inner.num_bytes(key))

    def delete(self, key: str) -> None:
        self._ask("delete", key, lambda: self._inner.delete(key))

    def sweep_unfinished(self, is_dead: Callable[[str, float], bool], is_swept: Callable[[str], bool]) -> None:
        self._ask("sweep", "", lambda: self._inner.sweep_unfinished(is_dead, is_swept))

    @contextmanager
    def open_reader(self, key: str) -> Iterator[IO[bytes]]:
        by_range = RangeReader(
            f"{self.url}/{key}",
            self.num_bytes(key),
            lambda start, end: self.get_ranges(key, [start], [end])[0],
            self.patience.say,
        )
        with io.BufferedReader(by_range, range_reader.RANGE_BYTES) as reader:
            yield reader

    @contextmanager
    def open_writer(self, key: str) -> Iterator[IO[bytes]]:
        """What was written cannot be asked for again: the driver alone tries again, as long as it may."""
        with self._inner.open_writer(key) as writer:
            yield writer

    def _ask(self, verb: str, key: str, call: Callable[[], Answer]) -> Answer:
        return self.patience.ask(f"{self.url} ({verb} {key})", call)


class RemoteStore:
    """An object store behind a URL."""

    def __init__(self, url: str, store: Any, write_store: Any = None) -> None:
        """`write_store`: for files that are written front to back, by default `store`."""
        self.url = without_secrets(url)
        self._store = store
        self._write_store = write_store or store

    def get(self, key: str) -> bytes:
        with self._named("read", key):
            found = obstore.get(self._store, key)
            num_bytes = found.meta["size"]
            if num_bytes <= range_reader.RANGE_BYTES:
                return bytes(found.bytes())
        return self._reader(key, num_bytes).readall()

    def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[memoryview]:
        with self._named("read", key):
            return [memoryview(part) for part in obstore.get_ranges(self._store, key, starts=starts, ends=ends)]

    def put(self, key: str, data: bytes | memoryview) -> None:
        with self._named("write", key):
            store = self._store if len(data) <= _PART_BYTES else self._write_store
            obstore.put(store, key, data, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        with self._named("write", key):
            try:
                obstore.put(self._store, key, data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
            return True

    def list(self, prefix: str, after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        return islice(self._listed(prefix, after), limit)

    def _listed(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        """In the order of their keys: as object stores list."""
        folder, _, start = prefix.rpartition("/")
        with self._named("list", prefix, require_prefix):
            for chunk in obstore.list(self._store, folder or None, offset=after or None):
                for item in chunk:
                    if item["path"].startswith(f"{folder}/{start}" if folder else start):
                        yield ObjectInfo(item["path"], item["size"])

    def exists(self, key: str) -> bool:
        with self._named("look up", key):
            try:
                obstore.head(self._store, key)
            except FileNotFoundError:
                return False
            return True

    def num_bytes(self, key: str) -> int:
        with self._named("look up", key):
            return int(obstore.head(self._store, key)["size"])

    def delete(self, key: str) -> None:
        with self._named("delete", key):
            try:
                obstore.delete(self._store, key)
            except FileNotFoundError:
                return

    def sweep_unfinished(self, is_dead: Callable[[str, float], bool], is_swept: Callable[[str], bool]) -> None:
        """Nothing that could be listed; the server drops parts by the bucket's rule for them."""

    @contextmanager
    def open_reader(self, key: str) -> Iterator[IO[bytes]]:
        with io.BufferedReader(self._reader(key, self.num_bytes(key)), range_reader.RANGE_BYTES) as reader:
            yield reader

    def _reader(self, key: str, num_bytes: int) -> RangeReader:
        return RangeReader(f"{self.url}/{key}", num_bytes, lambda a, b: self.get_ranges(key, [a], [b])[0])

    @contextmanager
    def open_writer(self, key: str) -> Iterator[IO[bytes]]:
        parts: Any = {"buffer_size": _PART_BYTES, "max_concurrency": _PARTS_AT_ONCE}
        with self._named("write", key), obstore.open_writer(self._write_store, key, **parts) as writer:
            yield cast(IO[bytes], _CopyingWriter(writer))

    @contextmanager
    def _named(self, verb: str, key: str, require: Callable[[str, str], None] = require_key) -> Iterator[None]:
        require(self.url, key)
        try:
            yield
        except FileNotFoundError as error:
            raise StoreError(f"{self.url}/{key}: not there.") from error
        except (BaseError, PermissionError) as error:
            reason = str(error).splitlines()[0][:300]
            kind = StoreAwayError if _AWAY.search(reason) and _CREDENTIALS not in reason else StoreError
            raise kind(
                f"{self.url}/{key}: cannot {verb} it: {reason}. Check that the endpoint answers "
                "(AWS_ENDPOINT_URL), the credentials (AWS_ACCESS_KEY_ID, ...) and the bucket."
            ) from error


class _CopyingWriter:
    """The driver sends a block after `write` has returned, when the buffer may be in use again: so a copy."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, data: bytes | memoryview) -> int:
        """As of a file."""
        return int(self._writer.write(bytes(data)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


def _in_order_of_keys(entry: "os.DirEntry[str]") -> str:
    """A folder stands where the keys in it do: `a-b` is before `a/b`."""
    return f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name


def _is_past(folder: str, key: str) -> bool:
    """Whether nothing in a folder is greater than a key."""
    return f"{folder}/" <= key and not key.startswith(f"{folder}/")


_AWAY = re.compile(r"status code: (408|425|429|5\d\d)|HTTP error")
"""What a driver says of a server that may answer another time: overloaded, cut off, or silent."""
_CREDENTIALS = "169.254.169.254"
"""Asked where no credentials are given; that mends nothing by itself."""


class FolderStore:
    """A local folder, or one on a shared file system with atomic `link` (NFS, Lustre)."""

    def __init__(self, root: Path) -> None:
        self.url = str(root)
        self._root = root
        self._was_there = root.is_dir()

    def get(self, key: str) -> bytes:
        with self._named("read", key), open(self._file(key), "rb", buffering=0) as file:  # noqa: PTH123
            return file.readall()

    def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[memoryview]:
        with self._named("read", key), self._path(key).open("rb", buffering=0) as file:
            return [
                memoryview(os.pread(file.fileno(), end - start, start))
                for start, end in zip(starts, ends, strict=True)
            ]

    def put(self, key: str, data: bytes | memoryview) -> None:
        with self.open_writer(key) as file:
            file.write(data)

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        path = self._path(key)
        with self._named("write", key), self._unfinished(path) as (unfinished, file):
            file.write(data)
            _sync(file)
            try:
                os.link(unfinished, path)
            except FileExistsError:
                return False
            _sync_folder(path.parent)
            return True

    def list(self, prefix: str, after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        return islice(self._listed(prefix, after), limit)

    def _listed(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        require_prefix(self.url, prefix)
        with self._named("list", prefix):
            for key, entry in self._files(
                prefix.rpartition("/")[0], prefix, lambda folder: _is_past(folder, after)
            ):
                if key > after and not entry.name.startswith(UNFINISHED):
                    with suppress(FileNotFoundError):
                        yield ObjectInfo(key, entry.stat().st_size)

    def sweep_unfinished(self, is_dead: Callable[[str, float], bool], is_swept: Callable[[str], bool]) -> None:
        with self._named("sweep", ""):
            for key, entry in self._files("", "", is_swept):
                with suppress(FileNotFoundError):
                    if entry.name.startswith(UNFINISHED):
                        age_s = time.time() - entry.stat().st_mtime
                        if is_dead(key.rpartition("/")[0], age_s):
                            Path(entry.path).unlink()

    def _files(
        self, folder: str, prefix: str, is_left_out: Callable[[str], bool]
    ) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
        """Files whose key starts with `prefix`, in a folder and those below that are not left out, in the order
        of their keys; others may delete meanwhile."""
        try:
            with os.scandir(self._root / folder) as found:
                entries = sorted(found, key=_in_order_of_keys)
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            key = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                leads_there = f"{key}/".startswith(prefix) or prefix.startswith(f"{key}/")
                if leads_there and not is_left_out(key):
                    yield from self._files(key, prefix, is_left_out)
            elif key.startswith(prefix) and entry.is_file():
                yield key, entry

    def exists(self, key: str) -> bool:
        with self._named("look up", key):
            try:
                return stat.S_ISREG(os.stat(self._file(key)).st_mode)  # noqa: PTH116
            except (FileNotFoundError, NotADirectoryError):
                return False

    def num_bytes(self, key: str) -> int:
        with self._named("look up", key):
            path = self._path(key)
            if not path.is_file():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            return path.stat().st_size

    def delete(self, key: str) -> None:
        """Nothing behind a link to a folder: what lies there is not this store's alone."""
        with self._named("delete", key):
            path = self._path(key)
            if self._link_above(path) is not None:
                return
            path.unlink(missing_ok=True)
            with suppress(OSError):  # folders go with their last file
                for above in path.relative_to(self._root).parents[:-1]:
                    (self._root / above).rmdir()

    @contextmanager
    def open_reader(self, key: str) -> Iterator[IO[bytes]]:
        with self._named("read", key), self._path(key).open("rb") as file:
            yield file

    @contextmanager
    def open_writer(self, key: str) -> Iterator[IO[bytes]]:
        path = self._path(key)
        with self._named("write", key), self._unfinished(path) as (unfinished, file):
            yield file
            _sync(file)
            unfinished.replace(path)
            _sync_folder(path.parent)

    def _path(self, key: str) -> Path:
        require_key(self.url, key)
        return self._root / key

    def _file(self, key: str) -> str:
        """Likewise, for what is asked by the thousand: a `Path` takes longer to make than to look up."""
        require_key(self.url, key)
        return f"{self.url}/{key}"

    @contextmanager
    def _unfinished(self, path: Path) -> Iterator[tuple[Path, IO[bytes]]]:
        """A file beside `path` in which to write, and its name; gone afterwards, whatever happens."""
        self._refuse_moved()
        if (link := self._link_above(path)) is not None:
            raise StoreError(
                f"{link} is a link to {link.readlink()}: a store writes into folders of its own only, and "
                "nothing was written. Remove it, or put what it leads to in its place."
            )
        unfinished = path.with_name(f"{UNFINISHED}{path.name[:40]}-{os.getpid()}-{secrets.token_hex(4)}")
        try:
            with _opened(unfinished) as file:
                self._was_there = True
                yield unfinished, file
        finally:
            unfinished.unlink(missing_ok=True)

    def _link_above(self, path: Path) -> Path | None:
        """A folder of the store, above a path in it, that is a link."""
        num_above = len(path.relative_to(self._root).parts) - 1
        return next((each for each in path.parents[:num_above] if each.is_symlink()), None)

    def _refuse_moved(self) -> None:
        """Written on, it would come to lie in two places."""
        if self._was_there and not self._root.is_dir():
            raise StoreError(
                f"{self._root}: this folder was here and is not any more: it was moved, deleted or unmounted "
                "while it was written to. Nothing is written in its place; go on where it lies now."
            )

    @contextmanager
    def _named(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = no_room(error)
            cure = full or _CURES.get(error.errno or 0, "Check the path and its permissions.")
            kind = StoreFullError if full else StoreAwayError if error.errno in _AWAY_ERRNOS else StoreError
            raise kind(f"{self._root / key}: cannot {verb} it: {error.strerror}. {cure}") from error


_CURES = {
    errno.EROFS: "The file system is read-only: choose another folder.",
    errno.EPERM: "The file system may have no hard links, which commits rest on: choose another (--store).",
    errno.EOPNOTSUPP: "The file system has no hard links, which commits rest on: choose another (--store).",
    errno.EXDEV: "A folder in there is another file system: give the store one of its own (--store).",
}


_AWAY_ERRNOS = frozenset(
    (errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH,
     errno.ENETDOWN, errno.ENOTCONN, errno.ECONNREFUSED, errno.ECONNRESET, errno.EREMOTEIO, errno.ESHUTDOWN)
)  # fmt: skip
"""What a network file system says while its server is away."""


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _opened(path: Path) -> IO[bytes]:
    """A new file, and its folder; others may make and delete that meanwhile, with the last file in it."""
    for _ in range(100):
        with suppress(FileNotFoundError, FileExistsError):
            _make_folder(path.parent)
            return path.open("wb")
    _make_folder(path.parent)
    return path.open("wb")


def _make_folder(folder: Path) -> None:
    """Make a folder and its parents, and have their names on the disk."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
