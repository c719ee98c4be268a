"""Builds a dataset from raw files: tokenised Parquet shards and their manifest.

    sources --> spans --(check, pool)--> facts of all rows --> types, kind of label, rows to leave out
                  |                                                         |
                  +-----------------(tokenise, pool)------------------------+--> shards --> index_dataset

All input is checked before tokenising starts, so that a bad line at the end does not waste hours. Shards are
written atomically, under a name derived from their input and settings; an interrupted build continues where it
stopped. Memory holds one byte per row (`duplicates`), and the results of the spans that are in progress.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from assay.base.digest import sha256_of_bytes, sha256_of_json
from assay.base.errors import ConfigError, DataError
from assay.data.dataset.columns import KEY, LABEL, TIME, is_ragged
from assay.data.dataset.duplicates import Duplicates, DuplicateSearch
from assay.data.dataset.fields import (
    SHOWN_FAULTS,
    BuildConfig,
    Excluded,
    FieldTypes,
    SpanFacts,
    check_fields,
    check_span,
    field_types,
    key_of,
    metadata_array,
    row_reader,
    settings_of,
    time_of,
    unread_fields,
    usable_rows,
)
from assay.data.dataset.formats.boundaries import Boundaries
from assay.data.dataset.formats.conversation_parts import GUARD
from assay.data.dataset.formats.encode import (
    COLUMNS,
    LEAVES_OUT,
    LEAVES_OUT_ALL,
    EncodedRow,
    Encoder,
    UsableRow,
    list_array,
)
from assay.data.dataset.formats.template import TEMPLATE_FILE
from assay.data.dataset.index import TokenizerInfo, index_dataset
from assay.data.dataset.label_values import COLUMN_TYPES, LabelFacts, LabelKind, kind_of_labels, label_value
from assay.data.dataset.raw.find import find_spans
from assay.data.dataset.raw.span import RawSpan
from assay.data.dataset.tokens import (
    SETTINGS_FILE,
    TOKENIZER_FILE,
    load_tokenizer,
    new_vocabulary,
    tokenizer_file,
    train_tokenizer,
)
from assay.data.pools.pool import Pool, Progress, ThisThread, no_progress, run_jobs
from assay.data.pools.processes import ProcessPool
from assay.records.dataset import BoundaryTokens, BuildSummary, DatasetManifest
from assay.store.objects import open_store

SHARDS_FOLDER = "shards"
TRAINING_TEXTS = 200_000
"""Maximum number of (evenly spaced) texts that a new tokenizer is trained on."""
SMALL_BYTES = 4_000_000
"""Input size that is tokenised in about the time that starting a process takes."""
_OWN_FILE = re.compile(r"(\.unfinished-)?part-\d{5}-[0-9a-f]{12}\.parquet")
ORIGIN_FILE = "origin.json"
"""Sources and settings of a build, for finding a row's origin; not part of the dataset."""
_COUNT, _FIRST, _BOUNDARIES = "assay.", "assay.first_", "assay.boundaries"
"""Keys in the footer of a shard, followed by names of `Encoder.counts`."""
_ENCODING = "encoding 2"
"""Version of the encoding rules for language model rows. Part of shard names: change it with the rules."""
_NAMES_IF_SET = (
    "label_kind", "key_is_text", "drop", "format", "chat_template", "chat_date", "end_token", "control_tokens",
)  # fmt: skip


class ColumnPlan(NamedTuple):
    """Column types, inferred from all rows."""

    metadata: FieldTypes
    label: LabelKind | None
    """None for rows without labels."""


def build_dataset(
    sources: Sequence[Path],
    out: Path,
    config: BuildConfig,
    *,
    name: str | None = None,
    workers: int = 2,
    checking: Progress = no_progress,
    progress: Progress = no_progress,
    replacing: Callable[[], None] = lambda: None,
    pool: Pool | None = None,
) -> DatasetManifest:
    """Tokenise the rows of `sources` into `out/shards`, and write tokenizer and manifest to `out`.

    `checking` and `progress` are called with (shards done, total shards) during the two passes.
    `replacing` is called before files of another dataset in `out` are overwritten; it may raise to prevent that.
    `pool` runs the jobs of both passes; the default is `workers` local processes.
    """
    if new_vocabulary(config.tokenizer) is None:
        _check_tokenizer(config)
    check_foreign_shards(folder := out / SHARDS_FOLDER)
    spans = find_spans(sources, config.rows_per_shard)
    source_names = ", ".join(map(str, sources))
    if all(span.fields is not None for span in spans):
        check_fields(config, (name for span in spans for name in span.fields or ()), source_names)
    with nullcontext(pool) if pool is not None else _local_pool(spans, workers) as span_pool:
        facts, duplicates = _checked_rows(span_pool, spans, config, source_names, checking)
        plan = _column_plan(facts, config)
        _check_rows_left(facts, duplicates, source_names)
        config = _save_tokenizer(spans, duplicates, config, out, replacing)
        names = _shard_names([fact.digest for fact in facts], config, plan, duplicates)
        done = finished_shards(folder, [name for name in names if name], replacing)
        jobs = [
            (span, folder, name, config, plan, dropped)
            for span, name, dropped in zip(spans, names, duplicates.dropped, strict=True)
            if name and name not in done
        ]
        total = len(done) + len(jobs)
        list(run_jobs(span_pool, _write_shard, jobs, lambda n, _: progress(len(done) + n, total)))
        finished_shards(folder, [name for name in names if name])  # deletes what a killed worker left unfinished
    shards = [folder / name for name in names if name]

    written = [path for path in shards if path.name not in done]
    summary = _summary(facts, duplicates, shards, config)
    _remove_empty(shards, summary, source_names, config.max_tokens)
    manifest = index_dataset(
        str(folder),
        out,
        name=name or out.resolve().name,
        needs_label=config.label_field is not None,
        workers=workers,
        pool=pool,
        tokenizer_info=TokenizerInfo(
            sha256_of_bytes(Path(config.tokenizer).read_bytes()),
            _saved_file_digest(config, SETTINGS_FILE),
            _saved_file_digest(config, TEMPLATE_FILE),
            _boundaries(shards, config),
        ),
        build=summary.model_copy(update={"group": config.key_field or ""}),
        replacing=partial(_replace_or_clean_up, replacing, written),
    )
    _keep_origin(sources, config, out)
    return manifest


def _replace_or_clean_up(replacing: Callable[[], None], written: Sequence[Path]) -> None:
    """Call `replacing`; if it raises, delete the shards that this build has written."""
    try:
        replacing()
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise


def _checked_rows(
    pool: Pool, spans: Sequence[RawSpan], config: BuildConfig, source_names: str, progress: Progress
) -> tuple[list[SpanFacts], Duplicates]:
    """Check all rows, and find duplicates among them."""
    facts: list[SpanFacts] = []
    with DuplicateSearch() as search:
        for of_span, digests in run_jobs(pool, check_span, [(span, config) for span in spans], progress):
            facts.append(of_span)
            search.add(digests)
        _check_usable(facts, config, source_names)
        _check_missing_fields(facts, config, source_names)
        return facts, search.find(config.drop)


def _column_plan(facts: Sequence[SpanFacts], config: BuildConfig) -> ColumnPlan:
    labels = LabelFacts()
    for fact in facts:
        labels.merge(fact.labels)
    field = config.label_field
    kind = kind_of_labels(labels, config.label_kind, field=field) if field is not None else None
    return ColumnPlan(field_types((fact.seen for fact in facts), config), kind)


def _check_usable(facts: Sequence[SpanFacts], config: BuildConfig, source_names: str) -> None:
    count = 0 if "unusable" in config.drop else sum(fact.unusable.num_rows for fact in facts)
    faults = [fault for fact in facts for fault in fact.faults][:SHOWN_FAULTS]
    if count == 1:
        raise DataError(f"{faults[0]} {LEAVES_OUT}")
    if count:
        more = f"\n  and {count - len(faults):,} more" if count > len(faults) else ""
        listed = "".join(f"\n  {fault}" for fault in faults)
        raise DataError(f"{source_names}: {count:,} rows cannot be used:{listed}{more}\n{LEAVES_OUT_ALL}")


def _check_missing_fields(facts: Sequence[SpanFacts], config: BuildConfig, source_names: str) -> None:
    if names := {name for fact in facts for name in fact.fields}:
        check_fields(config, names, source_names)


def _check_rows_left(facts: Sequence[SpanFacts], duplicates: Duplicates, source_names: str) -> None:
    if duplicates.num_retained == 0:
        empty, unlabelled, unusable = _exclusions(facts)
        hint = f" The first: {unusable.first}" if unusable.num_rows else ""
        raise DataError(
            f"{source_names}: no row is left: {empty.num_rows:,} have no text, "
            f"{unlabelled.num_rows:,} no label, {duplicates.num_dropped + unusable.num_rows:,} are dropped. "
            f"Name the right format and fields (--format, --text, --label).{hint}"
        )


def _save_tokenizer(
    spans: Sequence[RawSpan], duplicates: Duplicates, config: BuildConfig, out: Path, replacing: Callable[[], None]
) -> BuildConfig:
    """Save the tokenizer (a copy, or newly trained) and, for a language model, its settings and chat template.

    Returns the config with the path of the saved tokenizer.
    """
    out.mkdir(parents=True, exist_ok=True)
    reader, settings = row_reader(config), settings_of(config)
    size = new_vocabulary(config.tokenizer)
    files: dict[str, bytes | None] = {}
    if size is None:
        source = tokenizer_file(config.tokenizer)
        files[TOKENIZER_FILE] = source.read_bytes()
        settings_file = source.parent / SETTINGS_FILE
        as_it_is = settings_file.read_bytes() if settings_file.is_file() and not config.end_token else None
    else:
        stride = -(-duplicates.num_retained // TRAINING_TEXTS)
        special = tuple(dict.fromkeys([*(reader.template.special_tokens() if reader.template else ()), reader.end]))
        special = tuple(token for token in special if token)
        texts = (
            _without(sequence.text, (*special, GUARD))
            for span in spans
            for usable in usable_rows(span, config)
            for sequence in usable.rendered.sequences
        )
        trained = train_tokenizer(islice(texts, 0, None, stride), vocab_size=size, special=special)
        files[TOKENIZER_FILE], as_it_is = trained.to_str(pretty=True).encode(), None
    if config.format != "labelled":
        written = json.dumps(settings, indent=2, ensure_ascii=False).encode() if settings else None
        files[SETTINGS_FILE] = as_it_is or written
        files[TEMPLATE_FILE] = reader.template.source.encode() if reader.template else None
    store = open_store(str(out))
    if any(store.exists(name) and store.get(name) != data for name, data in files.items()):
        replacing()
    for name, data in files.items():
        if data is None:
            store.delete(name)
        elif not store.exists(name) or store.get(name) != data:
            store.put(name, data)
    return config.model_copy(update={"tokenizer": str(out / TOKENIZER_FILE), "chat_template": None})


def _keep_origin(sources: Sequence[Path], config: BuildConfig, out: Path) -> None:
    origin = {"sources": [str(path.absolute()) for path in sources], "config": config.model_dump(mode="json")}
    open_store(str(out)).put(ORIGIN_FILE, json.dumps(origin).encode())


def _without(text: str, special: Sequence[str]) -> str:
    for token in special:
        text = text.replace(token, "")
    return text


def _saved_file_digest(config: BuildConfig, name: str) -> str | None:
    path = Path(config.tokenizer).parent / name
    is_saved = config.format != "labelled" and path.is_file()
    return sha256_of_bytes(path.read_bytes()) if is_saved else None


def _shard_names(
    digests: Sequence[str], config: BuildConfig, plan: ColumnPlan, duplicates: Duplicates
) -> list[str | None]:
    """Return the shard name of each span; None if all of its rows are dropped."""
    settings = sha256_of_json(
        [
            _settings_of(config),
            # The tokenizer's content, not its location.
            sha256_of_bytes(Path(config.tokenizer).read_bytes()),
            {name: str(kind) for name, kind in plan.metadata.items()},
            *([plan.label] if plan.label in ("classes", "number") else []),
            *([_ENCODING] if config.format != "labelled" else []),
            *filter(None, (_saved_file_digest(config, name) for name in (SETTINGS_FILE, TEMPLATE_FILE))),
        ]
    )
    names: list[str | None] = []
    for number, (digest, dropped) in enumerate(zip(digests, duplicates.dropped, strict=True)):
        without = [sha256_of_bytes(dropped.tobytes())] if dropped.any() else []
        named = f"part-{number:05d}-{sha256_of_json([digest, settings, *without])[:12]}.parquet"
        names.append(None if dropped.all() else named)
    return names


def _settings_of(config: BuildConfig) -> dict[str, Any]:
    """Return the settings that determine shard names. Settings in `_NAMES_IF_SET` count only if not default.

    Any change here renames shards, and so changes dataset fingerprints.
    """
    fields, tree = BuildConfig.model_fields, config.model_dump(mode="json", exclude={"tokenizer"})
    unset = {name for name in _NAMES_IF_SET if getattr(config, name) == fields[name].default}
    return {name: value for name, value in tree.items() if name not in unset}


def _exclusions(facts: Sequence[SpanFacts]) -> tuple[Excluded, Excluded, Excluded]:
    empty, unlabelled, unusable = Excluded(), Excluded(), Excluded()
    for fact in facts:
        empty, unlabelled = empty.plus(fact.empty), unlabelled.plus(fact.unlabelled)
        unusable = unusable.plus(fact.unusable)
    return empty, unlabelled, unusable


def _summary(
    facts: Sequence[SpanFacts], duplicates: Duplicates, shards: Sequence[Path], config: BuildConfig
) -> BuildSummary:
    empty, unlabelled, unusable = _exclusions(facts)
    counts: Counter[str] = Counter()
    long = altered = Excluded()
    for path in shards:
        footer = pq.read_metadata(path).metadata or {}
        written = {name.decode(): value.decode() for name, value in footer.items()}
        counted = ("cut_rows", "cut_tokens", "split_texts", "reasoning")
        counts.update({name: int(written.get(_COUNT + name, "0")) for name in counted})
        in_shard = (
            Excluded(int(written.get(_COUNT + name, "0")), written.get(_FIRST + name, ""))
            for name in ("long", "unusable", "altered")
        )
        long, unusable, altered = (
            excluded.plus(more) for excluded, more in zip((long, unusable, altered), in_shard, strict=True)
        )
    return BuildSummary(
        num_read=sum(fact.num_usable + sum(excluded.num_rows for excluded in _exclusions([fact])) for fact in facts),
        num_empty=empty.num_rows,
        first_empty=empty.first,
        num_unlabelled=unlabelled.num_rows,
        first_unlabelled=unlabelled.first,
        num_doubled=duplicates.num_doubled,
        num_conflicting=duplicates.num_conflicting,
        num_shared=duplicates.num_shared,
        num_dropped=duplicates.num_dropped,
        drop=config.drop,
        num_cut=counts["cut_rows"],
        num_cut_tokens=counts["cut_tokens"],
        num_split=counts["split_texts"],
        num_long=long.num_rows,
        first_long=long.first,
        num_unusable=unusable.num_rows,
        first_unusable=unusable.first,
        num_reasoning_dropped=counts["reasoning"],
        num_altered=altered.num_rows,
        first_altered=altered.first,
        unread_fields=unread_fields({name for fact in facts for name in fact.fields}, config),
        num_numbers=sum(fact.num_numbers for fact in facts),
        text=config.text_field if config.format in ("labelled", "text") else "",
    )


def _boundaries(shards: Sequence[Path], config: BuildConfig) -> BoundaryTokens | None:
    if config.format == "labelled":
        return None
    found = Boundaries()
    for path in filter(Path.exists, shards):
        footer = pq.read_metadata(path).metadata or {}
        found.merge(Boundaries.from_json(footer[_BOUNDARIES.encode()].decode()))
    return found.record()


def _remove_empty(shards: Sequence[Path], summary: BuildSummary, source_names: str, max_tokens: int) -> None:
    """Delete shards whose rows were all dropped while tokenising."""
    empty = [path for path in shards if pq.read_metadata(path).num_rows == 0]
    if len(empty) == len(shards):
        raise DataError(
            f"{source_names}: no row is left: {summary.num_long:,} are longer than {max_tokens} tokens "
            f"(the first: {summary.first_long or 'none'}), {summary.num_unusable:,} cannot be learned from "
            f"({summary.first_unusable or 'none'}). Allow more (--max-tokens)."
        )
    for path in empty:
        path.unlink()


def _local_pool(spans: Sequence[RawSpan], workers: int) -> Pool:
    """Return a pool of processes; this thread if the input is so small that it is faster."""
    sources = {span.source for span in spans}
    is_small = all(map(Path.is_file, sources)) and sum(source.stat().st_size for source in sources) < SMALL_BYTES
    return ThisThread() if workers == 1 or len(spans) == 1 or is_small else ProcessPool(workers)


def check_foreign_shards(folder: Path) -> None:
    """Raise `ConfigError` if a folder holds Parquet files that assay did not write, which would be indexed too."""
    others = sorted(path.name for path in folder.glob("*.parquet") if not _OWN_FILE.match(path.name))
    if others:
        raise ConfigError(
            f"{folder} holds {others[0]}, which was not written by 'assay data build'. Choose another --out, "
            "or adopt these files with 'assay data index'."
        )


def finished_shards(folder: Path, names: Sequence[str], replacing: Callable[[], None] = lambda: None) -> set[str]:
    """Return the existing shards of this build; shards of other inputs or settings are deleted."""
    found = {path.name for path in folder.glob("*part-*") if _OWN_FILE.match(path.name)}
    if stale_ones := found - set(names):
        replacing()
    for stale in stale_ones:
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
    encoder = _encoder(config)
    usable = (row for index, row in enumerate(usable_rows(span, config)) if dropped is None or not dropped[index])
    rows = encoder.rows(usable, config.rows_per_group)
    with (
        open_store(str(folder)).open_writer(name) as file,
        pq.ParquetWriter(file, _schema(config, plan), compression="zstd") as writer,
    ):
        while group := list(islice(rows, config.rows_per_group)):
            writer.write_table(pa.table(list(_columns(group, config, plan)), writer.schema))
        notes = {_COUNT + name: str(count) for name, count in encoder.counts.items() if count}
        notes |= {_FIRST + name: first for name, first in encoder.firsts.items()}
        if config.format != "labelled":
            notes[_BOUNDARIES] = encoder.boundaries.to_json()
        if notes:
            writer.add_key_value_metadata(notes)


def _schema(config: BuildConfig, plan: ColumnPlan) -> pa.Schema:
    fields = [*COLUMNS[config.format].items(), *plan.metadata.items()]
    return pa.schema([*fields, *((name, kind) for name, kind, _ in _named_fields(config, plan))])


def _named_fields(
    config: BuildConfig, plan: ColumnPlan
) -> Iterator[tuple[str, pa.DataType, Callable[[UsableRow], Any]]]:
    """Yield (column, type, function of the row) for the requested label, key and time."""
    if (label := config.label_field) is not None and (kind := plan.label) is not None:
        yield LABEL, COLUMN_TYPES[kind], lambda usable: label_value(usable.row[label], kind)
    if config.key_field is not None or config.key_is_text:
        yield KEY, pa.string(), lambda usable: key_of(usable, config)
    if (time := config.time_field) is not None:
        yield TIME, pa.timestamp("us", "UTC"), lambda usable: time_of(usable.row, time, usable.where)


def _columns(rows: list[EncodedRow], config: BuildConfig, plan: ColumnPlan) -> Iterator[pa.Array]:
    for name, arrow_type in COLUMNS[config.format].items():
        values = [row.columns[name] for row in rows]
        yield list_array(values, arrow_type) if is_ragged(arrow_type) else pa.array(values, arrow_type)
    for name, arrow_type in plan.metadata.items():
        yield metadata_array([row.source_row.row.get(name) for row in rows], arrow_type, name, rows[0].source_row.where)
    for _, arrow_type, value_of in _named_fields(config, plan):
        yield pa.array([value_of(row.source_row) for row in rows], arrow_type)


def _check_tokenizer(config: BuildConfig) -> None:
    """Raise `ConfigError` if the tokenizer leaves no tokens for text, or lacks required special tokens."""
    encoder = _encoder(config)
    reader, tokenizer = row_reader(config), encoder.tokenizer
    if reader.template is not None:
        reader.template.check_tokenizer(tokenizer, config.tokenizer)
    if reader.end and tokenizer.token_to_id(reader.end) is None:
        raise ConfigError(
            f"{config.tokenizer}: has no token {reader.end}, which would end each text. Name one of its own "
            "(--end-token), or none (--end-token '')."
        )


def encoded_rows(sources: Sequence[Path], span: int, config: BuildConfig) -> Iterator[EncodedRow]:
    """Encode the rows of one span of the sources as a build does, without dropping duplicates."""
    spans = find_spans(sources, config.rows_per_shard)
    return _encoder(config).rows(usable_rows(spans[span], config), config.rows_per_group)


def _encoder(config: BuildConfig) -> Encoder:
    tokenizer = load_tokenizer(config.tokenizer)
    around = tokenizer.num_special_tokens_to_add(False)
    if config.max_tokens <= around:
        raise ConfigError(
            f"max_tokens={config.max_tokens} leaves no room for text: {config.tokenizer} puts {around} tokens "
            "of its own around each row. Allow more."
        )
    if config.format == "labelled":
        tokenizer.enable_truncation(config.max_tokens)
    reader = row_reader(config)
    return Encoder(
        tokenizer,
        config.format,
        config.text_field,
        config.max_tokens,
        "unusable" in config.drop,
        template=reader.template,
        end=reader.end,
        keeps_end=config.end_token is None,
    )
