"""Reads the rows of one version of the data by column: a dataset, or files as `assay data build` reads them.

Fields of structs and JSON objects become columns with dotted names; absent fields are missing values.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.base.digest import sha256_of_parts
from assay.base.errors import DataError
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.manifest_file import MANIFEST_FILE
from assay.data.dataset.raw.find import find_spans
from assay.data.dataset.raw.lines import Files
from assay.data.dataset.raw.tables import column_values
from assay.data.dataset.raw.type_inference import infer_kind, parse_number

ROWS_AT_ONCE = 50_000


@dataclass(frozen=True)
class VersionRows:
    """One version of the data, in memory."""

    name: str
    digest: str
    """SHA-256 of the rows, or the dataset's fingerprint."""
    num_rows: int
    columns: dict[str, list[Any]]
    """One JSON value per row; None is missing."""
    is_untyped: bool = False
    """True for CSV."""
    is_dataset: bool = False
    """Whether it has a manifest."""

    def only(self, rows: NDArray[np.int64]) -> "VersionRows":
        chosen = rows.tolist()
        columns = {name: [values[row] for row in chosen] for name, values in self.columns.items()}
        return VersionRows(self.name, self.digest, len(chosen), columns, self.is_untyped)


def read_versions(before: Path, after: Path) -> tuple[VersionRows, VersionRows]:
    """Read all rows of two datasets, files, or folders of files; equal rows are equal in any format.

    CSV has neither types nor a difference between empty and missing; the other version decides.
    """
    old, new = _read_rows(before), _read_rows(after)
    return _read_matching(old, new), _read_matching(new, old)


def _read_rows(source: Path) -> VersionRows:
    is_dataset = (source / MANIFEST_FILE).is_file()
    return _of_dataset(source) if is_dataset else _of_files(source)


def _of_dataset(folder: Path) -> VersionRows:
    dataset = Dataset.open(folder)
    names = list(dataset.manifest.columns)
    groups = dataset.map_groups(lambda group: column_values(dataset.read_row_group(group, names)))
    columns = {name: [value for group in groups for value in group[name]] for name in (groups[0] if groups else ())}
    return VersionRows(str(folder), dataset.fingerprint, dataset.manifest.num_rows, columns, is_dataset=True)


def _of_files(source: Path) -> VersionRows:
    spans = find_spans([source], ROWS_AT_ONCE)
    if isinstance(spans[0], Files):
        raise DataError(
            f"{source}: not a file of rows. Expected a dataset's folder, a run, or Parquet, Arrow, CSV, TSV or "
            "JSON lines by their suffix."
        )
    rows = [dict(_flat(row)) for span in spans for _, row in span.rows()]
    if not rows:
        raise DataError(f"{source}: has no rows. Leave it out, or write it again.")
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    digest = sha256_of_parts(span.digest(span.fields or ()).encode() for span in spans)
    return VersionRows(str(source), digest, len(rows), columns, all(span.is_untyped for span in spans))


def _flat(row: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _read_matching(read: VersionRows, other: VersionRows) -> VersionRows:
    """Convert CSV's texts to values, and treat empty texts as missing if the other version is CSV."""
    columns = read.columns
    if read.is_untyped:
        columns = {name: _parsed_values(values, other, name) for name, values in columns.items()}
    elif other.is_untyped:
        columns = {name: [None if value == "" else value for value in columns[name]] for name in columns}
    return replace(read, columns=columns)


def _parsed_values(texts: list[str | None], other: VersionRows, name: str) -> list[Any]:
    """Return a column's values with the other version's type, if it has types; otherwise as `data build`
    infers them.

    A wrong value among numbers is a finding, and does not turn the column into text.
    """
    known = None if other.is_untyped else _most(other.columns.get(name, ()))
    present = [text for text in texts if text is not None]
    kinds = {infer_kind(text) for text in present}
    if known is str:
        return list(texts)
    if known is bool or (known is None and kinds == {"bool"}):
        found = {text: text.lower() == "true" for text in set(present) if infer_kind(text) == "bool"}
        return [None if text is None else found.get(text, text) for text in texts]
    numbers = [None if text is None else parse_number(text) for text in texts]
    is_of_numbers = sum(number is not None for number in numbers) >= 0.9 * max(1, len(present))
    if known is None and not is_of_numbers:
        return list(texts)
    return [text if number is None else number for text, number in zip(texts, numbers, strict=True)]


def _most(values: Iterable[Any]) -> type | None:
    """Return the most frequent type: text, boolean or number; None without values."""
    kinds = Counter(
        bool if isinstance(value, bool) else str if isinstance(value, str) else float
        for value in values
        if value is not None and value != ""
    )
    return kinds.most_common(1)[0][0] if kinds else None


def is_missing(values: Iterable[Any]) -> NDArray[np.bool_]:
    """Return which values are missing or NaN."""
    return np.array([value is None or value != value for value in values], bool)
