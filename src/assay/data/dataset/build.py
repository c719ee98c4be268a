"""Make a dataset from raw text: rows of files in, tokenised Parquet shards and their manifest out.

    sources --> spans --(check, processes)--> facts of all rows --> types, kind of label, rows to leave out
                  |                                                         |
                  +------------------(tokenise, processes)------------------+--> shards --> index_dataset

All input is checked before the first token is made, so a bad line at the end does not cost the hours before it.
A shard appears whole or not at all, under a name that says which input and settings it came from; a build that
was interrupted goes on where it stopped. Of each row, what stays in memory is three digests of eight bytes.
"""

import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from assay.base.digest import sha256_of_bytes, sha256_of_json
from assay.base.errors import ConfigError, DataError
from assay.base.versioned import FOR_DIGEST
from assay.data.dataset.columns import KEY, LABEL, MASK, TIME, TOKENS
from assay.data.dataset.doubles import Doubles, find_doubles
from assay.data.dataset.fields import (
    BuildConfig,
    FieldTypes,
    Left,
    SpanFacts,
    check_fields,
    check_span,
    field_types,
    kept_rows,
    key_of,
    metadata_array,
    time_of,
)
from assay.data.dataset.index import Progress, index_dataset
from assay.data.dataset.label_values import COLUMN_TYPES, LabelFacts, LabelKind, kind_of_labels, label_value
from assay.data.dataset.raw.find import find_spans
from assay.data.dataset.raw.span import RawSpan, Row
from assay.data.dataset.tokens import (
    TOKENIZER_FILE,
    load_tokenizer,
    new_vocabulary,
    tokenizer_file,
    train_tokenizer,
)
from assay.records.dataset import BuildSummary, DatasetManifest
from assay.store.objects import open_store

SHARDS_FOLDER = "shards"
TRAINING_TEXTS = 200_000
"""Texts that a new tokenizer is trained on, at most: every so many-th."""
_OWN_FILE = re.compile(r"(\.unfinished-)?part-\d{5}-[0-9a-f]{12}\.parquet")
_CUT_ROWS, _CUT_TOKENS = b"assay.cut_rows", b"assay.cut_tokens"
"""In the footer of a shard some of whose rows were cut."""
Result = TypeVar("Result")


def _no_progress(done: int, total: int) -> None:
    """Say nothing."""


class ColumnPlan(NamedTuple):
    """What all rows together say of the columns."""

    metadata: FieldTypes
    label: LabelKind | None
    """None where the rows have none."""


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
    """Tokenise the rows of `sources` into `out/shards` and index them in `out`, where the tokenizer is, too.

    `checking` and `progress` are called with (shards done, shards in all) of the two passes over the input.
    """
    if new_vocabulary(config.tokenizer) is None:
        _tokenizer(config)
    folder = out / SHARDS_FOLDER
    _refuse_others_shards(folder)
    spans = find_spans(sources, config.rows_per_shard)
    said = ", ".join(map(str, sources))
    if all(span.fields is not None for span in spans):
        check_fields(config, (name for span in spans for name in span.fields or ()), said)
    # Forking a process that has threads is unsafe, and the one fork server of a process belongs to the ranks:
    # started here, it would not have imported what they need.
    with ProcessPoolExecutor(workers, get_context("spawn"), _begin_worker) as pool:
        facts = _each(pool, check_span, [(span, config) for span in spans], checking)
        check_fields(config, (name for each in facts for name in each.fields), said)
        plan, doubles = _column_plan(facts, config), find_doubles(facts, config.drop)
        _refuse_nothing_left(facts, doubles, said)
        config = config.model_copy(update={"tokenizer": _kept_tokenizer(spans, doubles, config, out)})
        names = _shard_names(
            _each(pool, _digest_of, [(span, config) for span in spans], _no_progress), config, plan, doubles
        )
        done = _finished(folder, [name for name in names if name])
        jobs = [
            (span, folder, name, config, plan, dropped)
            for span, name, dropped in zip(spans, names, doubles.dropped, strict=True)
            if name and name not in done
        ]
        total = len(jobs) + len(done)
        _each(pool, _write_shard, jobs, lambda written, _: progress(len(done) + written, total))
    return index_dataset(
        str(folder),
        out,
        name=name or out.resolve().name,
        needs_label=config.label_field is not None,
        workers=workers,
        tokenizer_sha256=sha256_of_bytes(Path(config.tokenizer).read_bytes()),
        build=_summary(facts, doubles, [folder / name for name in names if name]),
    )


def _column_plan(facts: Sequence[SpanFacts], config: BuildConfig) -> ColumnPlan:
    labels = LabelFacts()
    for each in facts:
        labels.merge(each.labels)
    field = config.label_field
    kind = kind_of_labels(labels, config.label_kind, field=field) if field is not None else None
    return ColumnPlan(field_types((each.seen for each in facts), config), kind)


def _refuse_nothing_left(facts: Sequence[SpanFacts], doubles: Doubles, said: str) -> None:
    if doubles.num_kept == 0:
        empty, unlabelled = _left(facts)
        raise DataError(
            f"{said}: no row is left: {empty.num_rows:,} have no text, {unlabelled.num_rows:,} no label, "
            f"{doubles.num_dropped:,} are dropped. Name the right fields (--text, --label)."
        )


def _kept_tokenizer(spans: Sequence[RawSpan], doubles: Doubles, config: BuildConfig, out: Path) -> str:
    """The file in the dataset's folder: a copy of the one that is given, or a new one."""
    kept = out / TOKENIZER_FILE
    out.mkdir(parents=True, exist_ok=True)
    size = new_vocabulary(config.tokenizer)
    if size is None:
        data = tokenizer_file(config.tokenizer).read_bytes()
    else:
        every = -(-doubles.num_kept // TRAINING_TEXTS)
        texts = (row[config.text_field] for span in spans for _, row in kept_rows(span, config))
        data = train_tokenizer(islice(texts, 0, None, every), vocab_size=size).to_str(pretty=True).encode()
    open_store(str(out)).put(TOKENIZER_FILE, data)
    return str(kept)


def _shard_names(
    digests: Sequence[str], config: BuildConfig, plan: ColumnPlan, doubles: Doubles
) -> list[str | None]:
    """None for a span of which no row is kept."""
    settings = sha256_of_json(
        [
            # Not where the tokenizer lies, but what it is.
            config.model_dump(mode="json", exclude={"tokenizer"}, context=dict(FOR_DIGEST)),
            sha256_of_bytes(Path(config.tokenizer).read_bytes()),
            {name: str(kind) for name, kind in plan.metadata.items()},
            *([plan.label] if plan.label in ("classes", "number") else []),
        ]
    )
    names: list[str | None] = []
    for number, (digest, dropped) in enumerate(zip(digests, doubles.dropped, strict=True)):
        without = [sha256_of_bytes(dropped.tobytes())] if dropped.any() else []
        named = f"part-{number:05d}-{sha256_of_json([digest, settings, *without])[:12]}.parquet"
        names.append(None if dropped.all() else named)
    return names


def _digest_of(span: RawSpan, config: BuildConfig) -> str:
    return span.digest(config.fields())


def _left(facts: Sequence[SpanFacts]) -> tuple[Left, Left]:
    empty, unlabelled = Left(), Left()
    for each in facts:
        empty, unlabelled = empty.and_later(each.empty), unlabelled.and_later(each.unlabelled)
    return empty, unlabelled


def _summary(facts: Sequence[SpanFacts], doubles: Doubles, shards: Sequence[Path]) -> BuildSummary:
    empty, unlabelled = _left(facts)
    cut: Counter[bytes] = Counter()
    for path in shards:
        written = pq.read_metadata(path).metadata or {}
        cut.update({key: int(written.get(key, b"0")) for key in (_CUT_ROWS, _CUT_TOKENS)})
    return BuildSummary(
        num_read=sum(len(each.texts) for each in facts) + empty.num_rows + unlabelled.num_rows,
        num_empty=empty.num_rows,
        first_empty=empty.first,
        num_unlabelled=unlabelled.num_rows,
        first_unlabelled=unlabelled.first,
        num_doubled=doubles.num_doubled,
        num_conflicting=doubles.num_conflicting,
        num_shared=doubles.num_shared,
        num_dropped=doubles.num_dropped,
        num_cut=cut[_CUT_ROWS],
        num_cut_tokens=cut[_CUT_TOKENS],
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


def _write_shard(
    span: RawSpan,
    folder: Path,
    name: str,
    config: BuildConfig,
    plan: ColumnPlan,
    dropped: npt.NDArray[np.bool_] | None = None,
) -> None:
    tokenizer, kept = _tokenizer(config), kept_rows(span, config)
    rows = (row for index, row in enumerate(kept) if dropped is None or not dropped[index])
    cut: Counter[bytes] = Counter()
    with (
        open_store(str(folder)).open_writer(name) as file,
        pq.ParquetWriter(file, _schema(config, plan), compression="zstd") as writer,
    ):
        while group := list(islice(rows, config.rows_per_group)):
            writer.write_table(pa.table(list(_columns(group, tokenizer, config, plan, cut)), writer.schema))
        if cut[_CUT_ROWS]:
            writer.add_key_value_metadata({key.decode(): str(count) for key, count in cut.items()})


def _schema(config: BuildConfig, plan: ColumnPlan) -> pa.Schema:
    fields = [(TOKENS, pa.list_(pa.int32())), (MASK, pa.list_(pa.int8())), *plan.metadata.items()]
    return pa.schema([*fields, *((name, kind) for name, kind, _ in _named_fields(config, plan))])


def _named_fields(
    config: BuildConfig, plan: ColumnPlan
) -> Iterator[tuple[str, pa.DataType, Callable[[Row, str], Any]]]:
    """Label, key and time, as far as they are asked for: column, type, value of a row (and where it is)."""
    if (label := config.label_field) is not None and (kind := plan.label) is not None:
        yield LABEL, COLUMN_TYPES[kind], lambda row, _: label_value(row[label], kind)
    if config.key_field is not None or config.key_is_text:
        yield KEY, pa.string(), lambda row, _: key_of(row, config)
    if (time := config.time_field) is not None:
        yield TIME, pa.timestamp("us", "UTC"), lambda row, where: time_of(row, time, where)


def _columns(
    rows: list[tuple[str, Row]],
    tokenizer: Tokenizer,
    config: BuildConfig,
    plan: ColumnPlan,
    cut: Counter[bytes],
) -> Iterator[pa.Array]:
    """In the order of `_schema`; what is cut is counted."""
    encoded = tokenizer.encode_batch_fast([row[config.text_field] for _, row in rows])
    lengths = np.array([len(encoding) for encoding in encoded])
    if not lengths.all():
        where = rows[int(lengths.argmin())][0]
        raise DataError(
            f"{where}: '{config.text_field}' has no tokens by this tokenizer. Drop or mend the row, or use "
            "another."
        )
    around = tokenizer.num_special_tokens_to_add(False)
    for encoding in encoded:
        if len(encoding) == config.max_tokens and (beyond := encoding.overflowing):
            cut[_CUT_ROWS] += 1
            cut[_CUT_TOKENS] += sum(len(each) - around for each in beyond)
    borders = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    ids = np.concatenate([np.array(encoding.ids, np.int32) for encoding in encoded])
    yield pa.ListArray.from_arrays(borders, pa.array(ids))
    yield pa.ListArray.from_arrays(borders, pa.array(np.ones(len(ids), np.int8)))
    for name, arrow_type in plan.metadata.items():
        yield metadata_array([row.get(name) for _, row in rows], arrow_type, name, rows[0][0])
    for _, arrow_type, value_of in _named_fields(config, plan):
        yield pa.array([value_of(row, where) for where, row in rows], arrow_type)


def _tokenizer(config: BuildConfig) -> Tokenizer:
    tokenizer = load_tokenizer(config.tokenizer)
    around = tokenizer.num_special_tokens_to_add(False)
    if config.max_tokens <= around:
        raise ConfigError(
            f"max_tokens={config.max_tokens} leaves no room for text: {config.tokenizer} puts {around} tokens "
            "of its own around each row. Allow more."
        )
    tokenizer.enable_truncation(config.max_tokens)
    return tokenizer
