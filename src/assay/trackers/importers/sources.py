"""Which tool left a file or folder, and the reader of its runs."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from assay.base.errors import ConfigError, DataError
from assay.trackers.importers.foreign_run import ForeignRun
from assay.trackers.importers.mlflow import META_FILE, read_mlflow_database, read_mlflow_folder
from assay.trackers.importers.neptune import read_neptune
from assay.trackers.importers.sqlite import columns_of, opened
from assay.trackers.importers.tensorboard import EVENT_FILES, read_tensorboard
from assay.trackers.importers.trackio import ASIDE, read_trackio_database, read_trackio_parquet
from assay.trackers.importers.wandb import RUN_FILES, read_wandb

DAMAGED = (sqlite3.Error, pa.ArrowException, OSError, UnicodeError, OverflowError)
"""Errors of libraries that read a damaged file: SQLite quotes bytes that are no text, Arrow has dates beyond 9999."""
Reader = Callable[[Path], Iterator[ForeignRun]]


def read_runs(source: Path, tool: str | None = None) -> Iterator[ForeignRun]:
    """Yield the runs that a tool left in a file or folder. Raises `ConfigError` if there are none of a known tool."""
    if not source.exists():
        raise ConfigError(f"{source}: no such file or folder.")
    path = source
    try:
        found = [(name, reader, path) for name, reader, path in _readers(source) if tool in (None, name)]
        names = sorted({name for name, _, _ in found})
        if not found:
            raise ConfigError(
                f"{source}: no runs of {tool or 'a known tool'} in it. Name a folder of TensorBoard event files, "
                "MLflow's mlruns or its SQLite file, a folder with W&B's offline runs, a project of trackio, or the "
                "data folder of neptune-exporter."
            )
        if len(names) > 1:
            raise ConfigError(f"{source}: it holds runs of {' and '.join(names)}. Choose one with --from.")
        for _, reader, path in found:
            yield from reader(path)
    except DAMAGED as error:
        raise DataError(f"{path}: cannot be read: {error}. What was imported before is kept.") from error


def _readers(source: Path) -> Iterator[tuple[str, Reader, Path]]:
    """Yield each reader that finds something, with the file or folder to give it."""
    folder = source if source.is_dir() else source.parent
    files = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
    found = dict.fromkeys(reader for path in files if (reader := _reader_of(path, folder)) is not None)
    yield from found


def _reader_of(path: Path, folder: Path) -> tuple[str, Reader, Path] | None:
    if path.match(EVENT_FILES):
        return "tensorboard", read_tensorboard, folder
    if path.match(RUN_FILES):
        return "wandb", read_wandb, folder
    if path.name == META_FILE and (path.parent / "metrics").is_dir():
        return "mlflow", read_mlflow_folder, path.parents[2]
    if path.suffix == ".parquet":
        columns = _parquet_columns(path)
        if "attribute_path" in columns:
            return "neptune", read_neptune, folder
        is_project = {"run_name", "step"} <= columns and not path.stem.endswith(ASIDE)
        if is_project and not path.with_suffix(".db").exists():
            return "trackio", read_trackio_parquet, path
    if _is_database(path):
        with closing(opened(path)) as database:
            if "run_uuid" in columns_of(database, "metrics"):
                return "mlflow", read_mlflow_database, path
            if "run_name" in columns_of(database, "metrics"):
                return "trackio", read_trackio_database, path
    return None


def _parquet_columns(path: Path) -> set[str]:
    try:
        return set(pq.read_schema(path).names)
    except DAMAGED:
        # A damaged part of an export counts among what is left out of its run.
        return {"attribute_path"} if "_part_" in path.name else set()


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"
