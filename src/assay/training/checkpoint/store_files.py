"""DCP's files in any of our stores: what DCP asks of a file system, answered by an `ObjectStore`.

Each file is hashed while it is written, so that the commit's manifest costs no second read.
"""

import hashlib
import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

from torch.distributed.checkpoint.filesystem import (
    FileSystemBase,
    FileSystemReader,
    FileSystemWriter,
)

from assay.records.commit import FileDigest
from assay.store.objects import ObjectStore

PathLike = str | os.PathLike[str]


class _HashingStream(io.RawIOBase):
    """Passes bytes on and remembers their count and SHA-256."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.sha256 = hashlib.sha256()
        self.num_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        self._target.write(view)
        self.sha256.update(view)
        self.num_bytes += len(view)
        return len(view)

    def tell(self) -> int:
        return self.num_bytes


class StoreFileSystem(FileSystemBase):
    """The file system of one checkpoint folder; `written` has the digest of each file that it wrote."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store = store
        self._folder = folder
        self._written: dict[str, FileDigest] = {}
        self._lock = threading.Lock()

    @property
    def written(self) -> tuple[FileDigest, ...]:
        """Files that this process wrote, by path."""
        return tuple(self._written[path] for path in sorted(self._written))

    @contextmanager
    def create_stream(self, path: PathLike, mode: str) -> Iterator[io.IOBase]:
        """Open a file to read (seekable) or to write (front to back)."""
        if mode == "rb":
            with self._store.open_reader(os.fspath(path)) as reader:
                yield cast(io.IOBase, reader)
            return
        with self._store.open_writer(os.fspath(path)) as writer:
            hashing = _HashingStream(writer)
            # Large buffer: torch.save writes many small pieces.
            buffered = io.BufferedWriter(hashing, 1 << 20)
            yield cast(io.IOBase, buffered)
            if not buffered.closed:  # DCP closes some of its streams itself
                buffered.flush()
        name = os.fspath(path).removeprefix(self._folder + "/")
        digest = FileDigest(path=name, num_bytes=hashing.num_bytes, sha256=hashing.sha256.hexdigest())
        with self._lock:
            self._written[name] = digest

    def concat_path(self, path: PathLike, suffix: str) -> str:
        """Join."""
        return f"{os.fspath(path)}/{suffix}"

    def rename(self, path: PathLike, new_path: PathLike) -> None:
        """Move one of our own files; DCP does so with its metadata only, which is small."""
        old, new = os.fspath(path), os.fspath(new_path)
        self._store.put(new, self._store.get(old))
        self._store.delete(old)
        with self._lock:
            digest = self._written.pop(old.removeprefix(self._folder + "/"))
            name = new.removeprefix(self._folder + "/")
            self._written[name] = digest.model_copy(update={"path": name})

    def init_path(self, path: PathLike) -> PathLike:
        """Nothing to prepare."""
        return path

    def mkdir(self, path: PathLike) -> None:
        """Folders come into being with their files."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: PathLike) -> bool:  # noqa: ARG003
        """Any text names a folder."""
        return True

    def exists(self, path: PathLike) -> bool:
        """Whether the file is there."""
        return self._store.exists(os.fspath(path))

    def rm_file(self, path: PathLike) -> None:
        """Delete."""
        self._store.delete(os.fspath(path))


class StoreWriter(FileSystemWriter):
    """Writes one checkpoint folder of an `ObjectStore`."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        # The store makes files durable when they are closed; DCP's own way without a file number is os.sync().
        super().__init__(folder, sync_files=False)
        self.files = StoreFileSystem(store, folder)
        self.fs = self.files  # type: ignore[assignment]
        self.path = folder


class StoreReader(FileSystemReader):
    """Reads one checkpoint folder of an `ObjectStore`."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        super().__init__(folder)
        self.fs = StoreFileSystem(store, folder)  # type: ignore[assignment]
        self.path = folder

    def _slice_file(self, file: IO[bytes], sinfo: Any) -> IO[bytes]:
        file.seek(sinfo.offset)
        return io.BytesIO(file.read(sinfo.length))
