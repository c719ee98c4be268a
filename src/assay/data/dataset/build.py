"""Make a dataset from raw text: JSON lines in, tokenised Parquet shards and their manifest out.

    *.jsonl --(cut by line count)--> jobs --(processes)--> part-00000.parquet ... --> index_dataset

A shard appears whole or not at all, under a name that says which input and settings it came from; a build that
was interrupted goes on where it stopped.
"""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import PositiveInt

from assay.base.config import FrozenConfig
from assay.base.digest import sha256_of_bytes, sha256_of_json
from assay.base.errors import DataError, StoreError
from assay.data.dataset.columns import LABEL, MASK, TOKENS
from assay.data.dataset.index import Progress, index_dataset
from assay.data.dataset.tokens import load_tokenizer
from assay.records.dataset import DatasetManifest

SHARDS_FOLDER = "shards"


class BuildConfig(FrozenConfig):
    """How raw rows become a dataset."""

    tokenizer: str
    """A `tokenizer.json`, or a folder that holds one."""

    text_field: str = "text"

    label_field: str | None = "label"
    """None for rows without a label."""

    metadata_fields: tuple[str, ...] = ()
    """Kept as columns; absent or null is missing."""

    time_field: str | None = None
    """ISO 8601 text, kept as a timestamp column `created_at`."""

    key_field: str | None = None
    """Kept as text in the column `shard_id`, by which rows can be split."""

    max_tokens: PositiveInt = 2048
    """Longer rows are cut at their end."""

    rows_per_shard: PositiveInt = 100_000

    rows_per_group: PositiveInt = 1_000


def build_dataset(
    sources: Sequence[Path],
    out: Path,
    config: BuildConfig,
    *,
    name: str | None = None,
    workers: int = 2,
    progress: Progress = lambda done, total: None,
) -> DatasetManifest:
    """Tokenise the lines of `sources` into `out/shards` and index them in `out`."""
    tokenizer_sha256 = sha256_of_bytes(_tokenizer_file(config).read_bytes())
    load_tokenizer(Path(config.tokenizer))
    jobs = list(_jobs(sources, config.rows_per_shard))
    shards = out / SHARDS_FOLDER
    with _disk_errors(shards):
        shards.mkdir(parents=True, exist_ok=True)
    settings = sha256_of_json([config.model_dump(mode="json"), tokenizer_sha256])
    names = [f"part-{number:05d}-{_job_digest(job, settings)}.parquet" for number, job in enumerate(jobs)]
    for stale in set(shards.glob("part-*")) - {shards / name for name in names}:
        stale.unlink()
    missing = [
        (job, shards / name) for job, name in zip(jobs, names, strict=True) if not (shards / name).exists()
    ]
    progress(len(jobs) - len(missing), len(jobs))
    # Forking a process that has threads is unsafe; spawned ones import this module only.
    with ProcessPoolExecutor(workers, mp_context=get_context("forkserver")) as pool:
        futures = [pool.submit(_write_shard, *job, path, config) for job, path in missing]
        try:
            for done, future in enumerate(futures, start=1 + len(jobs) - len(missing)):
                future.result()
                progress(done, len(jobs))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return index_dataset(
        str(shards),
        out,
        name=name or out.name,
        needs_label=config.label_field is not None,
        workers=workers,
        tokenizer_sha256=tokenizer_sha256,
    )


Job = tuple[Path, int, int]
"""A source, its first line (from 0) and the line behind the last."""


def _jobs(sources: Sequence[Path], rows_per_shard: int) -> Iterator[Job]:
    for source in sources:
        try:
            with source.open("rb") as file:
                num_lines = sum(1 for _ in file)
        except OSError as error:
            raise DataError(f"{source}: cannot be read: {error.strerror}.") from error
        if num_lines == 0:
            raise DataError(f"{source}: is empty. Leave it out, or write it again.")
        for first in range(0, num_lines, rows_per_shard):
            yield source, first, min(num_lines, first + rows_per_shard)


def _job_digest(job: Job, settings: str) -> str:
    source, first, stop = job
    status = source.stat()
    return sha256_of_json([str(source), status.st_size, status.st_mtime_ns, first, stop, settings])[:12]


def _write_shard(source: Path, first: int, stop: int, path: Path, config: BuildConfig) -> None:
    rows = list(_rows(source, first, stop))
    columns = _columns(rows, f"{source}", first, config)
    unfinished = path.with_suffix(".unfinished")
    with _disk_errors(path):
        pq.write_table(pa.table(columns), unfinished, compression="zstd", row_group_size=config.rows_per_group)
        unfinished.replace(path)


def _rows(source: Path, first: int, stop: int) -> Iterator[dict[str, Any]]:
    with source.open("rb") as file:
        for number, line in enumerate(islice(file, first, stop), start=first + 1):
            try:
                row = json.loads(line.decode())
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{source}: line {number}: not UTF-8 (byte {error.start} of the line is "
                    f"0x{line[error.start]:02x}). Convert the file: iconv -f <its encoding> -t utf-8."
                ) from error
            except ValueError as error:
                raise DataError(f"{source}: line {number}: not JSON: {error}.") from error
            if not isinstance(row, dict):
                raise DataError(f"{source}: line {number}: expected a JSON object, found {type(row).__name__}.")
            yield row


def _columns(rows: list[dict[str, Any]], source: str, first: int, config: BuildConfig) -> dict[str, pa.Array]:
    tokenizer = load_tokenizer(Path(config.tokenizer))
    texts = [
        _field(row, config.text_field, str, f"{source}: line {first + n}") for n, row in enumerate(rows, 1)
    ]
    encoded = [encoding.ids[: config.max_tokens] for encoding in tokenizer.encode_batch_fast(texts)]
    for number, ids in enumerate(encoded, start=first + 1):
        if not ids:
            raise DataError(f"{source}: line {number}: '{config.text_field}' has no tokens. Drop empty rows.")
    columns = {
        TOKENS: pa.array(encoded, pa.list_(pa.int32())),
        MASK: pa.array([[1] * len(ids) for ids in encoded], pa.list_(pa.int8())),
    }
    for name in config.metadata_fields:
        columns[name] = _metadata([row.get(name) for row in rows], name, source)
    if config.label_field is not None:
        columns[LABEL] = pa.array(
            [_label(row, config.label_field, f"{source}: line {first + n}") for n, row in enumerate(rows, 1)],
            pa.int8(),
        )
    if config.key_field is not None:
        columns["shard_id"] = pa.array([str(row.get(config.key_field)) for row in rows])
    if config.time_field is not None:
        columns["created_at"] = _times([row.get(config.time_field) for row in rows], config.time_field, source)
    return columns


def _field(row: dict[str, Any], name: str, kind: type, where: str) -> Any:
    if not isinstance(value := row.get(name), kind):
        found = "missing" if value is None else f"of type {type(value).__name__}"
        raise DataError(f"{where}: field '{name}' is {found}; expected {kind.__name__}.")
    return value


def _label(row: dict[str, Any], name: str, where: str) -> int:
    label = row.get(name)
    if label not in (0, 1):
        raise DataError(f"{where}: field '{name}' is {label!r}; expected 0 or 1. Map the labels first.")
    return int(label)


def _metadata(values: list[Any], name: str, source: str) -> pa.Array:
    present = [value for value in values if value is not None]
    is_number = present and all(isinstance(value, int | float) for value in present)
    try:
        return pa.array(values, pa.float64() if is_number else pa.string())
    except (pa.ArrowException, TypeError) as error:
        raise DataError(
            f"{source}: field '{name}' mixes types: {error}. Make it all text or all numbers."
        ) from error


def _times(values: list[Any], name: str, source: str) -> pa.Array:
    from datetime import datetime

    try:
        moments = [None if value is None else datetime.fromisoformat(value) for value in values]
        return pa.array(moments, pa.timestamp("us", "UTC"))
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise DataError(
            f"{source}: field '{name}': {error}; expected ISO 8601, e.g. 2026-11-21T03:49:38Z."
        ) from error


def _tokenizer_file(config: BuildConfig) -> Path:
    path = Path(config.tokenizer)
    return path / "tokenizer.json" if path.is_dir() else path


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be written: {error.strerror or error}. Free some space or choose another folder; "
            "finished shards are kept, and the same command goes on from there."
        ) from error
