"""Implements DCP's file system on an `ObjectStore`.

Each file is hashed while it is written, so the commit's manifest needs no second read. Commits may come from
anywhere, and DCP stores its metadata as a pickle, which runs whatever it names. So only the few classes of that
metadata, numbers and tensors are unpickled, and only files that the commit names are read.
"""

import hashlib
import io
import os
import pickle
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load

from assay.base.errors import AssayError, DamagedDataError
from assay.records.commit import Commit, FileDigest
from assay.store.objects import ObjectStore

PathLike = str | os.PathLike[str]

METADATA_NAME = ".metadata"

_ADMITTED = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    *(
        (dcp.__name__, name)
        for name in (
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    ),
}
"""Classes in DCP's metadata, besides dtypes. None runs code when it is constructed."""


class _HashingStream(io.RawIOBase):
    """Passes bytes on; computes their count and SHA-256."""

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
    """The file system of one checkpoint folder; `written` has the digest of each written file."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store = store
        self._folder = folder
        self._written: dict[str, FileDigest] = {}
        self._lock = threading.Lock()

    @property
    def written(self) -> tuple[FileDigest, ...]:
        """Digests of the files that this process wrote, by path."""
        return tuple(self._written[path] for path in sorted(self._written))

    @contextmanager
    def create_stream(self, path: PathLike, mode: str) -> Iterator[io.IOBase]:
        """Open a file to read (seekable) or to write (sequentially)."""
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
        return f"{os.fspath(path)}/{suffix}"

    def rename(self, path: PathLike, new_path: PathLike) -> None:
        """Rename a file by copying it; DCP renames only its small metadata."""
        old, new = os.fspath(path), os.fspath(new_path)
        self._store.put(new, self._store.get(old))
        self._store.delete(old)
        with self._lock:
            digest = self._written.pop(old.removeprefix(self._folder + "/"))
            name = new.removeprefix(self._folder + "/")
            self._written[name] = digest.model_copy(update={"path": name})

    def init_path(self, path: PathLike) -> PathLike:
        return path

    def mkdir(self, path: PathLike) -> None:
        """Do nothing: folders exist with their files."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: PathLike) -> bool:  # noqa: ARG003
        return True

    def exists(self, path: PathLike) -> bool:
        return self._store.exists(os.fspath(path))

    def rm_file(self, path: PathLike) -> None:
        self._store.delete(os.fspath(path))


class StoreWriter(FileSystemWriter):
    """Writes one checkpoint folder of an `ObjectStore`."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        # The store makes files durable on close; DCP would call os.sync() for files without a descriptor.
        super().__init__(folder, sync_files=False)
        self.files = StoreFileSystem(store, folder)
        self.fs = self.files  # type: ignore[assignment]
        self.path = folder


def read_commit(
    state: dict[str, Any], store: ObjectStore, commit: Commit, group: dist.ProcessGroup | None = None
) -> None:
    """Fill a state in place from a commit's files, at any world size; all ranks of `group` call it together.

    Raises `DamagedDataError` for files that assay does not write, whatever their digests are.
    """
    reader = _StoreReader(store, commit)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*assuming the intent is to load in a single process")
            load(state, storage_reader=reader, planner=_PlainValues(), process_group=group, no_dist=group is None)
    except CheckpointException as error:
        cause = cause_of(error)
        if isinstance(cause, AssayError):
            raise cause from error
        first = next(failure for failure, _ in error.failures.values())
        raise DamagedDataError(
            f"{commit.folder}: cannot be read into the model of this recipe: {first}. Its files have the "
            "committed digests, so another version of assay or another tool wrote it."
        ) from error


def cause_of(error: CheckpointException) -> BaseException:
    """Return the error of the first rank that failed: a full disk says more than DCP's own error."""
    return next((failure for failure, _ in error.failures.values() if isinstance(failure, AssayError)), error)


class _StoreReader(FileSystemReader):
    """Reads the files of one commit of an `ObjectStore`, and no others."""

    def __init__(self, store: ObjectStore, commit: Commit) -> None:
        super().__init__(commit.folder)
        self.fs = StoreFileSystem(store, commit.folder)  # type: ignore[assignment]
        self.path = commit.folder
        # Read eagerly: DCP would report an error here as a missing file.
        self._metadata = _metadata_of(store.get(f"{commit.folder}/{METADATA_NAME}"), commit)

    def read_metadata(self) -> dcp.Metadata:
        """Return the metadata; DCP's other form, one file a rank, is not used."""
        return self._metadata

    def _slice_file(self, file: IO[bytes], sinfo: Any) -> IO[bytes]:
        file.seek(sinfo.offset)
        return io.BytesIO(file.read(sinfo.length))


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or (module, name) in _ADMITTED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _metadata_of(data: bytes, commit: Commit) -> dcp.Metadata:
    """Unpickle DCP's metadata without running code."""
    name = f"{commit.folder}/{METADATA_NAME}"
    files = {file.path for file in commit.files}
    try:
        metadata: dcp.Metadata = _MetadataUnpickler(io.BytesIO(data)).load()
        unexpected = {info.relative_path for info in metadata.storage_data.values()} - files
        is_plain = all(info.transform_descriptors is None for info in metadata.storage_data.values())
    except Exception as error:  # a pickle's bytes can fail in any way
        raise DamagedDataError(
            f"{name}: not written by assay: {error}. No code of it was run. Another tool wrote it: do not "
            "use this run, and ask the person who gave it to you."
        ) from error
    if unexpected or not is_plain:
        what = f"{min(unexpected)!r} is no file of this commit" if unexpected else "its tensors were transformed"
        raise DamagedDataError(f"{name}: not written by assay: {what}.")
    return metadata


class _PlainValues(DefaultLoadPlanner):
    """Loads values other than tensors (a learning rate, flags) without running code."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        try:
            if isinstance(self.state_dict[name], Tensor):
                raise pickle.UnpicklingError("a tensor was expected")
            found = torch.load(value, weights_only=True)
        except Exception as error:
            raise DamagedDataError(
                f"'{name}' in a commit: not written by assay: {str(error).splitlines()[0]}. Nothing of it was run."
            ) from error
        set_element(self.original_state_dict, self.mappings[name], found)
