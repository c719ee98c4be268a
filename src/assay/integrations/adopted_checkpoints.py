"""Adopts checkpoints that another tool wrote: names their files by digest, and copies nothing.

Digests are computed in a thread while training goes on, because a checkpoint may take a minute to read. A checkpoint
counts from its entry in the commit log, which is written last.
"""

import os
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

from assay.base.clock import SystemClock
from assay.base.digest import sha256_of_file, sha256_of_json
from assay.records.commit import Commit, FileDigest
from assay.records.cursor import Cursor
from assay.store.commit_log import CommitLog, checkpoint_folder

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".distcp")
"""Endings of files with weights."""
NOT_WEIGHTS = ("optimizer", "scheduler", "rng_state", "random_states", "training_args", "scaler")


class SavedCheckpoint(NamedTuple):
    """A checkpoint that the training loop has finished writing."""

    path: Path
    """A folder, or one file."""
    step: int
    rows: int
    """Rows of the steps since the previous checkpoint, as far as they were counted."""


class CheckpointAdopter:
    """Appends an entry to the run's log for each checkpoint, in a thread of its own."""

    def __init__(self, log: CommitLog, world_size: int) -> None:
        self._log = log
        self._world_size = world_size
        self.problems: SimpleQueue[str] = SimpleQueue()
        """Why checkpoints were not adopted."""
        self._waiting: SimpleQueue[SavedCheckpoint | None] = SimpleQueue()
        self._thread: Thread | None = None

    def add(self, saved: SavedCheckpoint) -> None:
        """Adopt a checkpoint; returns at once."""
        if self._thread is None:
            self._thread = Thread(target=self._work, name="assay checkpoints", daemon=True)
            self._thread.start()
        self._waiting.put(saved)

    def close(self) -> None:
        """Wait until all checkpoints are adopted."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (saved := self._waiting.get()) is not None:
            try:
                self._adopt(saved)
            except Exception as error:  # the training loop must not notice
                self.problems.put(f"the checkpoint of step {saved.step} in {saved.path} is not recorded: {error}")

    def _adopt(self, saved: SavedCheckpoint) -> None:
        attempt, path = self._log.attempt, saved.path.resolve()
        folder = path if path.is_dir() else path.parent
        files = _unchanging_files(folder, path)
        commits = self._log.commits()
        gone = [commit.folder for commit in commits if not Path(commit.adopted_from).exists()]
        named = {file.path for file in files}
        here = [commit for commit in commits if commit.adopted_from == str(folder)]
        replaced = [commit.folder for commit in here if named & {file.path for file in commit.files}]
        self._log.append(
            Commit(
                attempt=attempt,
                world_size=self._world_size,
                step=saved.step,
                cursor=Cursor(),
                committed_s=SystemClock().now_s(),
                folder=checkpoint_folder(saved.step, attempt),
                files=files,
                weights_digest=_weights_digest(files),
                receipts_from_step=0,
                rows_trained=saved.rows,
                retires=tuple(dict.fromkeys([*gone, *replaced])),
                adopted_from=str(folder),
            )
        )


def _unchanging_files(folder: Path, saved: Path) -> tuple[FileDigest, ...]:
    """Return the digests of a checkpoint's files, read again if a rank was still writing."""
    while True:
        before = _states(saved)
        files = tuple(
            FileDigest(
                path=path.relative_to(folder).as_posix(), num_bytes=path.stat().st_size, sha256=sha256_of_file(path)
            )
            for path, *_ in before
        )
        if _states(saved) == before:
            return files


def _states(saved: Path) -> list[tuple[Path, int, int]]:
    """Return path, time of change and size of a checkpoint's files."""
    paths = _files(saved) if saved.is_dir() else [saved]
    return [(path, state.st_mtime_ns, state.st_size) for path in paths for state in [path.stat()]]


def _files(folder: Path) -> list[Path]:
    found = [Path(root) / name for root, _, names in os.walk(folder) for name in names]
    if not found:
        raise OSError(f"{folder} holds no files")
    return sorted(found)


def _weights_digest(files: tuple[FileDigest, ...]) -> str:
    """Return a digest of the weights' files, or of all files if none is known to hold weights."""
    weights = [
        file for file in files if file.path.endswith(WEIGHTS) and not Path(file.path).name.startswith(NOT_WEIGHTS)
    ]
    return sha256_of_json([[file.path, file.sha256] for file in weights or files])
