"""Make a dataset from raw text: JSON lines or text files in, tokenised Parquet shards and their manifest out.

    sources --> spans --(check, processes)--> field types --(tokenise, processes)--> shards --> index_dataset

All input is checked before the first token is made, so a bad line at the end does not cost the hours before it.
A shard appears whole or not at all, under a name that says which input and settings it came from; a build that
was interrupted goes on where it stopped.
"""

import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from operator import methodcaller
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from assay.base.digest import sha256_of_bytes, sha256_of_json
from assay.base.errors import ConfigError, DataError
from assay.data.dataset.columns import KEY, LABEL, MASK, TIME, TOKENS
from assay.data.dataset.fields import (
    BuildConfig,
    FieldTypes,
    check_span,
    field_types,
    label_of,
    metadata_array,
    text_of,
    time_of,
)
from assay.data.dataset.index import Progress, index_dataset
from assay.data.dataset.raw_rows import Row, Span, find_spans
from assay.data.dataset.tokens import load_tokenizer, tokenizer_file
from assay.records.dataset import DatasetManifest
from assay.store.objects import open_store

SHARDS_FOLDER = "shards"
_OWN_FILE = re.compile(r"(\.unfinished-)?part-\d{5}-[0-9a-f]{12}\.parquet")
Result = TypeVar("Result")


def _no_progress(done: int, total: int) -> None:
    """Say nothing."""


def build_dataset(
    sources: Sequence[Path],
    out: Path,
    config: BuildConfig,
    *,
    name: str | None = None,
    workers: int = 2,
    checking: Progress = _no_progress,
    progress: Progress = _no_progress,
) -> DatasetManifest:
    """Tokenise the rows of `sources` into `out/shards` and index them in `out`.

    `checking` and `progress` are called with (shards done, shards in all) of the two passes over the input.
    """
    tokenizer_sha256 = sha256_of_bytes(tokenizer_file(Path(config.tokenizer)).read_bytes())
    _tokenizer(config)
    folder = out / SHARDS_FOLDER
    _refuse_others_shards(folder)
    spans = find_spans(sources, config.rows_per_shard)
    # Forking a process that has threads is unsafe, and the one fork server of a process belongs to the ranks:
    # started here, it would not have imported what they need.
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin_worker) as pool:
        types = field_types(_each(pool, check_span, [(span, config) for span in spans], checking), config)
        settings = sha256_of_json(
            [
                config.model_dump(mode="json", exclude={"tokenizer"}),  # not where it lies, but what it is
                tokenizer_sha256,
                {name: str(kind) for name, kind in types.items()},
            ]
        )
        names = [
            f"part-{number:05d}-{sha256_of_json([digest, settings])[:12]}.parquet"
            for number, digest in enumerate(
                _each(pool, methodcaller("digest"), [(span,) for span in spans], _no_progress)
            )
        ]
        done = _finished(folder, names)
        jobs = [
            (span, folder, name, config, types)
            for span, name in zip(spans, names, strict=True)
            if name not in done
        ]
        _each(pool, _write_shard, jobs, lambda written, _: progress(len(done) + written, len(spans)))
    return index_dataset(
        str(folder),
        out,
        name=name or out.resolve().name,
        needs_label=config.label_field is not None,
        workers=workers,
        tokenizer_sha256=tokenizer_sha256,
    )


def _each(
    pool: ProcessPoolExecutor,
    work: Callable[..., Result],
    jobs: Sequence[tuple[object, ...]],
    progress: Progress,
) -> list[Result]:
    """The results in order; at the first error, what has not begun is dropped."""
    futures = [pool.submit(work, *job) for job in jobs]
    results = []
    progress(0, len(jobs))
    try:
        for future in futures:
            results.append(future.result())
            progress(len(results), len(jobs))
    except BaseException:
        pool.shutdown(cancel_futures=True)
        raise
    return results


def _begin_worker() -> None:
    """One thread, where the tokenizer would start one for every core; and no orphans."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for its next job forever."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _refuse_others_shards(folder: Path) -> None:
    others = sorted(path.name for path in folder.glob("*.parquet") if not _OWN_FILE.match(path.name))
    if others:
        raise ConfigError(
            f"{folder} holds {others[0]}, which was not written by 'assay data build'. Choose another --out, "
            "or adopt these files with 'assay data index'."
        )


def _finished(folder: Path, names: Sequence[str]) -> set[str]:
    """Shards of this build that are there already; those of another input or other settings are removed."""
    found = {path.name for path in folder.glob("*part-*") if _OWN_FILE.match(path.name)}
    for stale in found - set(names):
        (folder / stale).unlink()
    return found & set(names)


def _write_shard(span: Span, folder: Path, name: str, config: BuildConfig, types: FieldTypes) -> None:
    tokenizer, rows = _tokenizer(config), span.rows()
    with (
        open_store(str(folder)).open_writer(name) as file,
        pq.ParquetWriter(file, _schema(config, types), compression="zstd") as writer,
    ):
        while group := list(islice(rows, config.rows_per_group)):
            writer.write_table(pa.table(list(_columns(group, tokenizer, config, types)), writer.schema))


def _schema(config: BuildConfig, types: FieldTypes) -> pa.Schema:
    fields = [(TOKENS, pa.list_(pa.int32())), (MASK, pa.list_(pa.int8())), *types.items()]
    return pa.schema([*fields, *((name, kind) for name, kind, _ in _named_fields(config))])


def _named_fields(config: BuildConfig) -> Iterator[tuple[str, pa.DataType, Callable[[Row, str], Any]]]:
    """Label, key and time, as far as they are asked for: column, type, value of a row (and where it is)."""
    if (label := config.label_field) is not None:
        yield LABEL, pa.int8(), lambda row, where: label_of(row, label, where)
    if (key := config.key_field) is not None:
        yield KEY, pa.string(), lambda row, _: None if row.get(key) is None else str(row[key])
    if (time := config.time_field) is not None:
        yield TIME, pa.timestamp("us", "UTC"), lambda row, where: time_of(row, time, where)


def _columns(
    rows: list[tuple[str, Row]], tokenizer: Tokenizer, config: BuildConfig, types: FieldTypes
) -> Iterator[pa.Array]:
    """In the order of `_schema`."""
    encoded = tokenizer.encode_batch_fast([text_of(row, config, where) for where, row in rows])
    lengths = np.array([len(encoding) for encoding in encoded])
    if not lengths.all():
        where = rows[int(lengths.argmin())][0]
        raise DataError(f"{where}: '{config.text_field}' has no tokens. Drop rows without text.")
    borders = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    ids = np.concatenate([np.array(encoding.ids, np.int32) for encoding in encoded])
    yield pa.ListArray.from_arrays(borders, pa.array(ids))
    yield pa.ListArray.from_arrays(borders, pa.array(np.ones(len(ids), np.int8)))
    for name, arrow_type in types.items():
        yield metadata_array([row.get(name) for _, row in rows], arrow_type, name, rows[0][0])
    for _, arrow_type, value_of in _named_fields(config):
        yield pa.array([value_of(row, where) for where, row in rows], arrow_type)


def _tokenizer(config: BuildConfig) -> Tokenizer:
    tokenizer = load_tokenizer(Path(config.tokenizer))
    around = tokenizer.num_special_tokens_to_add(False)
    if config.max_tokens <= around:
        raise ConfigError(
            f"max_tokens={config.max_tokens} leaves no room for text: {config.tokenizer} puts {around} tokens "
            "of its own around each row. Allow more."
        )
    tokenizer.enable_truncation(config.max_tokens)
    return tokenizer
