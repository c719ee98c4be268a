"""Objects by key, in a folder, in S3 (GCS, Azure) or in memory: the only way that durable bytes are written.

Writes appear whole or not at all. `put_if_absent` is atomic: of two writers, one is told that it lost. In a
folder, a finished write is on the disk (fsync of the file and of its folder), since a commit rests on it.
"""

import errno
import io
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import MemoryStore, from_url

from assay.base.errors import StoreError


class ObjectInfo(NamedTuple):
    """One object in a listing."""

    key: str
    num_bytes: int


class ObjectStore(Protocol):
    """What the rest of assay asks of a store; keys have forward slashes and no leading one."""

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

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, in no particular order."""
        ...

    def exists(self, key: str) -> bool:
        """Whether the key is taken."""
        ...

    def delete(self, key: str) -> None:
        """Remove; no error if it was not there."""
        ...

    def open_reader(self, key: str) -> AbstractContextManager[IO[bytes]]:
        """A seekable file."""
        ...

    def open_writer(self, key: str) -> AbstractContextManager[IO[bytes]]:
        """A file written front to back; the object appears when the block ends without an error."""
        ...


_S3_CLIENT = {"timeout": "30s", "connect_timeout": "3s"}
_MAX_REQUEST_BYTES = 32 * 1024 * 1024
_S3_RETRY: Any = {"max_retries": 4, "retry_timeout": timedelta(seconds=20)}


def open_store(url: str) -> ObjectStore:
    """The store behind a path, `s3://bucket/prefix`, `gs://`, `az://` or `memory:`.

    S3 takes the usual AWS_* variables (AWS_ENDPOINT_URL for other servers than Amazon's).
    """
    if url.startswith("memory:"):
        return RemoteStore(url, MemoryStore())
    if "://" not in url:
        return FolderStore(Path(url))
    client = {**_S3_CLIENT, "allow_http": os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")}
    options: dict[str, Any] = {"client_options": client, "retry_config": _S3_RETRY}
    try:
        return RemoteStore(url, from_url(url, **options))
    except (BaseError, ValueError) as error:
        raise StoreError(f"{url}: cannot be opened as an object store: {error}") from error


class RemoteStore:
    """An object store behind a URL."""

    def __init__(self, url: str, store: Any) -> None:
        self.url = url
        self._store = store

    def get(self, key: str) -> bytes:
        with self._named("read", key):
            found = obstore.get(self._store, key)
            num_bytes = found.meta["size"]
            if num_bytes <= _MAX_REQUEST_BYTES:
                return bytes(found.bytes())
            # A request has a time limit, so a large object on a slow line takes several.
            starts = range(0, num_bytes, _MAX_REQUEST_BYTES)
            ends = [min(num_bytes, start + _MAX_REQUEST_BYTES) for start in starts]
            parts = zip(starts, ends, strict=True)
            return b"".join(obstore.get_range(self._store, key, start=a, end=b) for a, b in parts)

    def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> list[memoryview]:
        with self._named("read", key):
            return [memoryview(part) for part in obstore.get_ranges(self._store, key, starts=starts, ends=ends)]

    def put(self, key: str, data: bytes | memoryview) -> None:
        with self._named("write", key):
            obstore.put(self._store, key, data)

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        with self._named("write", key):
            try:
                obstore.put(self._store, key, data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
            return True

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder, _, start = prefix.rpartition("/")
        with self._named("list", prefix):
            for chunk in obstore.list(self._store, folder or None):
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

    def delete(self, key: str) -> None:
        with self._named("delete", key):
            try:
                obstore.delete(self._store, key)
            except FileNotFoundError:
                return

    @contextmanager
    def open_reader(self, key: str) -> Iterator[IO[bytes]]:
        with self._named("read", key):
            yield io.BytesIO(obstore.get(self._store, key).bytes())

    @contextmanager
    def open_writer(self, key: str) -> Iterator[IO[bytes]]:
        with self._named("write", key), obstore.open_writer(self._store, key) as writer:
            yield cast(IO[bytes], writer)

    @contextmanager
    def _named(self, verb: str, key: str) -> Iterator[None]:
        _require_within(self.url, key)
        try:
            yield
        except FileNotFoundError as error:
            raise StoreError(f"{self.url}/{key}: not there.") from error
        except (BaseError, PermissionError) as error:
            reason = str(error).splitlines()[0][:300]
            raise StoreError(
                f"{self.url}/{key}: cannot {verb} it: {reason}. Check that the endpoint answers "
                "(AWS_ENDPOINT_URL), the credentials (AWS_ACCESS_KEY_ID, ...) and the bucket."
            ) from error


def _require_within(url: str, key: str) -> None:
    """Keys come from logs and manifests that anybody may have written."""
    if key.startswith("/") or ".." in key.split("/"):
        raise StoreError(
            f"{url}: '{key}' leads out of this store, which no assay wrote. Nothing was touched: ask "
            "whoever gave you this run or dataset."
        )


class FolderStore:
    """A local folder, or one on a shared file system with atomic `link` (NFS, Lustre)."""

    def __init__(self, root: Path) -> None:
        self.url = str(root)
        self._root = root

    def get(self, key: str) -> bytes:
        with self._named("read", key):
            return self._path(key).read_bytes()

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
        with self._named("write", key), self._unfinished(path) as unfinished:
            with unfinished.open("wb") as file:
                file.write(data)
                _sync(file)
            try:
                os.link(unfinished, path)
            except FileExistsError:
                return False
            _sync_folder(path.parent)
            return True

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder = self._path(prefix.rpartition("/")[0])
        with self._named("list", prefix):
            for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
                key = path.relative_to(self._root).as_posix()
                if key.startswith(prefix) and path.is_file() and not path.name.startswith(_UNFINISHED):
                    yield ObjectInfo(key, path.stat().st_size)

    def exists(self, key: str) -> bool:
        return self._path(key).is_file()

    def delete(self, key: str) -> None:
        with self._named("delete", key):
            path = self._path(key)
            path.unlink(missing_ok=True)
            with suppress(OSError):  # the folder goes with its last file
                path.parent.rmdir()

    @contextmanager
    def open_reader(self, key: str) -> Iterator[IO[bytes]]:
        with self._named("read", key), self._path(key).open("rb") as file:
            yield file

    @contextmanager
    def open_writer(self, key: str) -> Iterator[IO[bytes]]:
        path = self._path(key)
        with self._named("write", key), self._unfinished(path) as unfinished:
            with unfinished.open("wb") as file:
                yield file
                _sync(file)
            unfinished.replace(path)
            _sync_folder(path.parent)

    def _path(self, key: str) -> Path:
        _require_within(self.url, key)
        return self._root / key

    @contextmanager
    def _unfinished(self, path: Path) -> Iterator[Path]:
        """A name beside `path` under which to write; gone afterwards, whatever happens."""
        _make_folder(path.parent)
        unfinished = path.with_name(f"{_UNFINISHED}{path.name}-{os.getpid()}-{threading.get_ident()}")
        try:
            yield unfinished
        finally:
            unfinished.unlink(missing_ok=True)

    @contextmanager
    def _named(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            cure = _CURES.get(error.errno or 0, "Check the path and its permissions.")
            raise StoreError(f"{self._root / key}: cannot {verb} it: {error.strerror}. {cure}") from error


_UNFINISHED = ".unfinished-"
_CURES = {
    errno.ENOSPC: "The disk is full: free some space there and start again; all commits are intact.",
    errno.EDQUOT: "The quota is used up: free some space there and start again; all commits are intact.",
    errno.EROFS: "The file system is read-only: choose another folder.",
}


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


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
