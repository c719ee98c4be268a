"""Resolves sources (files, glob patterns, folders) to spans of rows.

a.parquet  a.arrow  a.csv  a.tsv  a.jsonl  a.txt    rows of one file
'notes/**/*.md'                                     any other file is one row; patterns expand to their files
folder/                                             files of one of these kinds, or a folder saved by `datasets`
"""

import os
from collections.abc import Callable, Iterator, Sequence
from glob import glob, has_magic
from itertools import groupby
from pathlib import Path
from typing import Any

from assay.base.errors import ConfigError, DataError, regular
from assay.base.parsing.nesting import parse_json
from assay.data.dataset.raw.delimited import DELIMITERS, delimited_spans
from assay.data.dataset.raw.lines import TEXT_SUFFIX, file_spans, line_spans
from assay.data.dataset.raw.span import RawSpan
from assay.data.dataset.raw.tables import ARROW_SUFFIXES, PARQUET_SUFFIX, table_spans
from assay.data.dataset.source_files import files_below, text_paths

_JSON_LINES = (".jsonl", ".ndjson")
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".tar", ".tgz", ".7z", ".xlsx", ".pkl", ".pickle")
_KINDS = {
    PARQUET_SUFFIX: "Parquet",
    **dict.fromkeys(ARROW_SUFFIXES, "Arrow"),
    **dict.fromkeys(DELIMITERS, "CSV or TSV"),
    **dict.fromkeys(_JSON_LINES, "JSON lines"),
}
"""Kinds of files that are searched for in folders, by suffix."""
_READERS: dict[str, Callable[[Path, int], Iterator[RawSpan]]] = {
    PARQUET_SUFFIX: table_spans,
    **dict.fromkeys(ARROW_SUFFIXES, table_spans),
    **dict.fromkeys(DELIMITERS, delimited_spans),
    **dict.fromkeys((*_JSON_LINES, ".json", TEXT_SUFFIX), line_spans),
}


def find_spans(sources: Sequence[Path], rows_per_span: int) -> list[RawSpan]:
    """Return the spans of all sources; the last span of a file may be shorter."""
    return list(iter_spans(sources, rows_per_span))


def iter_spans(sources: Sequence[Path], rows_per_span: int) -> Iterator[RawSpan]:
    """Yield the spans of all sources as they are found."""
    for is_row, group in groupby(_expanded(sources), key=_is_a_row):
        files = list(group)
        if is_row:
            yield from _loose_spans(files, rows_per_span)
            continue
        for source in files:
            try:
                spans = _folder_spans if source.is_dir() else _file_spans
                yield from spans(source, rows_per_span)
            except OSError as error:
                raise DataError(f"{source}: cannot be read: {error.strerror or error}. Check the path.") from error


def _expanded(sources: Sequence[Path]) -> Iterator[Path]:
    for source in sources:
        if source.exists() or not has_magic(str(source)):
            yield regular(source)
            continue
        found = sorted(path for path in glob(str(source), recursive=True) if Path(path).is_file())  # noqa: PTH207
        if not found:
            raise DataError(f"{source}: no file matches this pattern. Check it; '**' matches nested folders.")
        yield from map(Path, found)


def _is_a_row(source: Path) -> bool:
    suffix = source.suffix.lower()
    if suffix in _PACKED:
        raise ConfigError(
            f"{source}: a {suffix} file is not read. Unpack it, or write it as Parquet, CSV or JSON lines."
        )
    return not source.is_dir() and suffix not in _READERS


def _file_spans(source: Path, rows_per_span: int) -> Iterator[RawSpan]:
    return _READERS[source.suffix.lower()](source, rows_per_span)


def _loose_spans(files: list[Path], rows_per_span: int) -> Iterator[RawSpan]:
    for file in files:
        if not file.is_file():
            raise DataError(f"{file}: cannot be read: there is no such file. Check the path.")
    if any(file.is_absolute() for file in files):
        files = [file.absolute() for file in files]
    base = Path(os.path.commonpath([file.parent for file in files]))
    return file_spans(base, [file.relative_to(base).as_posix() for file in files], rows_per_span)


def _folder_spans(folder: Path, rows_per_span: int) -> Iterator[RawSpan]:
    if (saved := _saved_by_datasets(folder)) is not None:
        for file in saved:
            yield from table_spans(file, rows_per_span)
        return
    visible = [path for path in files_below(folder) if not any(part[0] in "._" for part in path.split("/"))]
    by_kind: dict[str, list[str]] = {}
    for path in sorted(visible):
        if (suffix := Path(path).suffix.lower()) in _KINDS:
            by_kind.setdefault(_KINDS[suffix], []).append(path)
    if len(by_kind) > 1:
        _, most = max(by_kind.items(), key=lambda kind: len(kind[1]))
        raise ConfigError(
            f"{folder}: holds files of {' and of '.join(sorted(by_kind))}. Name those that are meant, by a "
            f"pattern in quotes: '{folder}/**/*{Path(most[0]).suffix}', say."
        )
    for paths in by_kind.values():
        for path in paths:
            yield from _file_spans(folder / path, rows_per_span)
    if by_kind:
        return
    paths = text_paths(folder, TEXT_SUFFIX)
    if not paths:
        suffix = next((found for path in sorted(visible) if (found := Path(path).suffix)), ".md")
        raise DataError(
            f"{folder}: no *{TEXT_SUFFIX} file there, nor Parquet, Arrow, CSV or JSON lines. Name the files "
            f"by a pattern in quotes: '{folder}/**/*{suffix}', say."
        )
    yield from file_spans(folder, paths, rows_per_span)


def _saved_by_datasets(folder: Path) -> list[Path] | None:
    """Return the Arrow files of a folder saved by `datasets`, in order; None for another folder."""
    if (folder / "dataset_dict.json").is_file():
        splits = _json_of(folder / "dataset_dict.json").get("splits", ())
        return [file for split in splits for file in _saved_by_datasets(folder / str(split)) or ()]
    if (folder / "state.json").is_file():
        return [folder / str(file["filename"]) for file in _json_of(folder / "state.json")["_data_files"]]
    return None


def _json_of(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: cannot be read: {error}. Save the dataset again.") from error
    return found
