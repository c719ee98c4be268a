"""Objects by key, in a folder, in S3 (GCS, Azure) or in memory: the only way that durable bytes are written.

Writes appear whole or not at all. `put_if_absent` is atomic: of two writers, one is told that it lost. In a
folder, a finished write is on the disk (fsync of the file and of its folder), since a commit rests on it.
"""

import errno
import io
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, Protocol

from assay.base.errors import StoreAwayError, StoreError, StoreFullError, no_room
from assay.store.keys import UNFINISHED, ObjectInfo, require_key, require_prefix
from assay.store.remote import range_reader
from assay.store.remote.range_reader import RangeReader
from assay.store.retry_policy import ResultT, RetryPolicy


class ObjectStore(Protocol):
    """An object store. Every store rejects keys that `keys` does not allow."""

    url: str

    def get(self, key: str) -> bytes:
        """Return the object's bytes."""
        ...

    def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[memoryview]:
        """Return the bytes [start, end) of each range."""
        ...

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Write or replace the object."""
        ...

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        """Write the object if the key does not exist; return False if it does."""
        ...

    def list(self, prefix: str, after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        """List objects whose key starts with `prefix` and is greater than `after`, in any order. With `limit`,
        return the first ones by key, reading little more than these."""
        ...

    def exists(self, key: str) -> bool:
        """Return whether the object exists."""
        ...

    def num_bytes(self, key: str) -> int:
        """Return the object's size."""
        ...

    def delete(self, key: str) -> None:
        """Delete the object if it exists."""
        ...

    def sweep_unfinished(self, is_dead: Callable[[str, float], bool], is_swept: Callable[[str], bool]) -> None:
        """Delete unfinished writes for which `is_dead(folder, age_s)` holds. Folders for which `is_swept` holds
        are skipped."""
        ...

    def open_reader(self, key: str) -> AbstractContextManager[IO[bytes]]:
        """Open the object as a seekable file."""
        ...

    def open_writer(self, key: str) -> AbstractContextManager[IO[bytes]]:
        """Open a sequential file; the object appears when the block ends without an error."""
        ...


_BLOCK_BYTES = 8 << 20


def open_store(url: str, retry_policy: RetryPolicy | None = None) -> ObjectStore:
    """The store behind a path, `s3://bucket/prefix`, `gs://`, `az://` or `memory:`.

    S3 takes the usual AWS_* variables (AWS_ENDPOINT_URL for other servers than Amazon's). What does not answer
    is asked again for as long as `patience` says, by default $ASSAY_STORE_RETRY_S.
    """
    retry_policy = retry_policy or RetryPolicy.from_environment(os.environ)
    if "://" not in url and not url.startswith("memory:"):
        return RetryingStore(FolderStore(Path(url)), retry_policy)
    from assay.store.remote.remote_store import in_memory, remote_store  # the driver takes its time to import

    if url.startswith("memory:"):
        return in_memory(url)
    allows_http = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    return RetryingStore(remote_store(url, budget_s=retry_policy.budget_s, allows_http=allows_http), retry_policy)


def copy_object(source: ObjectStore, key: str, to: ObjectStore, new_key: str) -> None:
    """Copy an object block by block, within a store or to another."""
    with source.open_reader(key) as reader, to.open_writer(new_key) as writer:
        while block := reader.read(_BLOCK_BYTES):
            writer.write(block)


class RetryingStore:
    """Wraps `inner` and retries while it is unavailable."""

    def __init__(self, inner: ObjectStore, retry_policy: RetryPolicy) -> None:
        self.url = inner.url
        self.retry_policy = retry_policy
        self._inner = inner

    def get(self, key: str) -> bytes:
        """See `ObjectStore`; so for all that follows."""
        return self._retry("read", key, lambda: self._inner.get(key))

    def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[memoryview]:
        return self._retry("read", key, lambda: self._inner.get_ranges(key, starts, ends))

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._retry("write", key, lambda: self._inner.put(key, data))

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        return self._retry("write", key, lambda: self._inner.put_if_absent(key, data))

    def list(self, prefix: str, after: str = "", limit: int | None = None) -> Iterator[ObjectInfo]:
        return iter(self._retry("list", prefix, lambda: [*self._inner.list(prefix, after, limit)]))

    def exists(self, key: str) -> bool:
        return self._retry("look up", key, lambda: self._inner.exists(key))

    def num_bytes(self, key: str) -> int:
        return self._retry("look up", key, lambda: self._inner.num_bytes(key))

    def delete(self, key: str) -> None:
        self._retry("delete", key, lambda: self._inner.delete(key))

    def sweep_unfinished(self, is_dead: Callable[[str, float], bool], is_swept: Callable[[str], bool]) -> None:
        self._retry("sweep", "", lambda: self._inner.sweep_unfinished(is_dead, is_swept))

    @contextmanager
    def open_reader(self, key: str) -> Iterator[IO[bytes]]:
        by_range = RangeReader(
            f"{self.url}/{key}",
            self.num_bytes(key),
            lambda start, end: self.get_ranges(key, [start], [end])[0],
            self.retry_policy.notify,
        )
        with io.BufferedReader(by_range, range_reader.RANGE_BYTES) as reader:
            yield reader

    @contextmanager
    def open_writer(self, key: str) -> Iterator[IO[bytes]]:
        """Only the driver retries here, because streamed data cannot be sent again."""
        with self._inner.open_writer(key) as writer:
            yield writer

    def _retry(self, verb: str, key: str, call: Callable[[], ResultT]) -> ResultT:
        return self.retry_policy.call_with_retries(f"{self.url} ({verb} {key})", call)


def _in_order_of_keys(entry: "os.DirEntry[str]") -> str:
    """Sort key that orders folders by the keys in them: `a-b` before `a/b`."""
    return f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name


def _is_past(folder: str, key: str) -> bool:
    """Return whether no key in a folder is greater than `key`."""
    return f"{folder}/" <= key and not key.startswith(f"{folder}/")


class FolderStore:
    """A local folder, or one on a shared file system with atomic `link` (NFS, Lustre)."""

    def __init__(self, root: Path) -> None:
        self.url = str(root)
        self._root = root
        self._existed = root.is_dir()

    def get(self, key: str) -> bytes:
        with self._named("read", key), open(self._file(key), "rb", buffering=0) as file:  # noqa: PTH123
            return file.readall()

    def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[memoryview]:
        with self._named("read", key), self._path(key).open("rb", buffering=0) as file:
            return [
                memoryview(os.pread(file.fileno(), end - start, start)) for start, end in zip(starts, ends, strict=True)
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
            for key, entry in self._files(prefix.rpartition("/")[0], prefix, lambda folder: _is_past(folder, after)):
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
        """Yield files whose key starts with `prefix` below a folder, in key order, without excluded folders.
        Others may delete files meanwhile."""
        try:
            with os.scandir(f"{self.url}/{folder}") as found:
                entries = sorted(found, key=_in_order_of_keys)
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            key = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                is_on_path = f"{key}/".startswith(prefix) or prefix.startswith(f"{key}/")
                if is_on_path and not is_left_out(key):
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
        """Does not follow links to folders, whose files may belong to others."""
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
        """Return the path as text, for frequent look-ups: constructing a `Path` takes longer than the look-up."""
        require_key(self.url, key)
        return f"{self.url}/{key}"

    @contextmanager
    def _unfinished(self, path: Path) -> Iterator[tuple[Path, IO[bytes]]]:
        """Open a temporary file next to `path`; it is removed afterwards."""
        self._reject_moved()
        if (link := self._link_above(path)) is not None:
            raise StoreError(
                f"{link} is a link to {link.readlink()}: a store writes into folders of its own only, and "
                "nothing was written. Remove it, or put what it leads to in its place."
            )
        unfinished = path.with_name(f"{UNFINISHED}{path.name[:40]}-{os.getpid()}-{secrets.token_hex(4)}")
        try:
            with _opened(unfinished) as file:
                self._existed = True
                yield unfinished, file
        finally:
            unfinished.unlink(missing_ok=True)

    def _link_above(self, path: Path) -> Path | None:
        """Return a link among the folders between the store's root and `path`."""
        num_above = len(path.relative_to(self._root).parts) - 1
        return next((parent for parent in path.parents[:num_above] if parent.is_symlink()), None)

    def _reject_moved(self) -> None:
        """Raise `StoreError` if the root folder was moved: writing would create a second copy."""
        if self._existed and not self._root.is_dir():
            raise StoreError(
                f"{self._root}: this folder was here and is not any more: it was moved, deleted or unmounted "
                "while it was written to. Nothing is written in its place; go on where it lies now, if it does."
            )

    @contextmanager
    def _named(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            full = no_room(error)
            number = error.errno or 0
            is_of_link = error.filename2 is not None
            of_kind = _NOT_CHANGED if number == errno.EPERM and not is_of_link else _HINTS.get(number)
            hint = full or of_kind or "Check the path and its permissions."
            kind = StoreFullError if full else StoreAwayError if error.errno in _AWAY_ERRNOS else StoreError
            raise kind(f"{self._root / key}: cannot {verb} it: {error.strerror}. {hint}") from error


_NOT_CHANGED = "It is another user's, or immutable or append-only ('lsattr' says so): choose another folder."
_HINTS = {
    errno.EROFS: "The file system is read-only: choose another folder.",
    errno.EPERM: "The file system may have no hard links, which commits rest on: choose another (--store).",
    errno.EOPNOTSUPP: "The file system has no hard links, which commits rest on: choose another (--store).",
    errno.EXDEV: "A folder in there is another file system: give the store one of its own (--store).",
}


_AWAY_ERRNOS = frozenset(
    (errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH,
     errno.ENETDOWN, errno.ENOTCONN, errno.ECONNREFUSED, errno.ECONNRESET, errno.EREMOTEIO, errno.ESHUTDOWN)
)  # fmt: skip
"""Errors of a network file system whose server is unavailable."""


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _opened(path: Path) -> IO[bytes]:
    """Create a file and its folder, which others may create or delete concurrently."""
    for _ in range(100):
        with suppress(FileNotFoundError, FileExistsError):
            _make_folder(path.parent)
            return path.open("wb")
    _make_folder(path.parent)
    return path.open("wb")


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents, durably."""
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
