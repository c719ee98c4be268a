"""Object stores on S3, GCS and Azure by one driver; and in memory, for tests and previews."""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from typing import IO, Any, cast

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import MemoryStore, from_url

from assay.base.errors import StoreAwayError, StoreError
from assay.base.shown_url import without_secrets
from assay.store.keys import ObjectInfo, require_key, require_prefix
from assay.store.remote import range_reader
from assay.store.remote.range_reader import RangeReader

_CLIENT = {"timeout": "30s", "connect_timeout": "3s"}
_PART_BYTES = 16 << 20
_PARTS_AT_ONCE = 8
"""How many parts of a file are written at once: through within their limit at 1.1 MB/s; 10,000, all that S3
takes, are 168 GB."""
_RETRY: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}
"""Retries inside the driver; `RetryPolicy` adds its own."""
_WRITER_TIMEOUT_S = 120.0
_WRITER_RETRY_S = 300.0
"""Retry budget for the parts of a file (at most the policy's): callers cannot repeat a streamed write."""
_BACK_OFF: Any = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=10), "base": 2}
_AWAY = re.compile(r"status code: (408|425|429|5\d\d)|HTTP error")
"""Driver errors that may be temporary: overloaded, disconnected or silent servers."""
_CREDENTIALS = "169.254.169.254"
"""Address the driver queries without credentials; retrying cannot help."""


def in_memory(url: str) -> "RemoteStore":
    """Return a store that lives as long as the process."""
    return RemoteStore(url, MemoryStore())


def remote_store(url: str, *, budget_s: float, allows_http: bool) -> "RemoteStore":
    """Return the store of a URL. `budget_s`: retry budget."""
    http = {"allow_http": allows_http}
    retry_s = min(_WRITER_RETRY_S, budget_s)
    writer = {**_CLIENT, "timeout": f"{max(30.0, min(_WRITER_TIMEOUT_S, retry_s)):.0f}s"}
    writer_retry = {"max_retries": 60, "retry_timeout": timedelta(seconds=retry_s), "backoff": _BACK_OFF}
    options: list[dict[str, Any]] = [
        {"client_options": {**client, **http}, "retry_config": retry}
        for client, retry in ((_CLIENT, _RETRY), (writer, writer_retry))
    ]
    try:
        store, write_store = (from_url(url, **option) for option in options)
    except (BaseError, ValueError) as error:
        reason = str(error).splitlines()[0].replace(url, without_secrets(url))
        raise StoreError(f"{without_secrets(url)}: cannot be opened as an object store: {reason}") from None
    return RemoteStore(url, store, write_store)


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
        """List in key order, as object stores do."""
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
        """Do nothing: unfinished parts are not listed, and the bucket's lifecycle rule removes them."""

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
    """Copies each block, because the driver sends it after `write` has returned and the buffer may be reused."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, data: bytes | memoryview) -> int:
        """Write a copy of the data."""
        return int(self._writer.write(bytes(data)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)
