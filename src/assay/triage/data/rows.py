"""The rows of one version of the data, column by column: a dataset, or files as `assay data build` reads them.

Fields of structs and of JSON's objects are columns with dotted names; what a row lacks is missing there."""

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
    """SHA-256 of the rows as they lie there, or the dataset's fingerprint."""
    num_rows: int
    columns: dict[str, list[Any]]
    """A value a row; None is missing. Values are as JSON holds them."""
    is_untyped: bool = False
    """Whether it is from CSV."""
    is_dataset: bool = False
    """Whether it was built or adopted, with a manifest."""

    def only(self, rows: NDArray[np.int64]) -> "VersionRows":
        """These rows."""
        chosen = rows.tolist()
        columns = {name: [values[row] for row in chosen] for name, values in self.columns.items()}
        return VersionRows(self.name, self.digest, len(chosen), columns, self.is_untyped)


def read_versions(before: Path, after: Path) -> tuple[VersionRows, VersionRows]:
    """All rows of two datasets' folders, files, or folders of files; the same rows are the same in any format.

    CSV says neither types nor whether a text is empty or missing: what the other version says of it counts."""
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
    """With CSV's texts as what they spell, and without what CSV cannot tell from nothing."""
    columns = read.columns
    if read.is_untyped:
        columns = {name: _parsed_values(values, other, name) for name, values in columns.items()}
    elif other.is_untyped:
        columns = {name: [None if value == "" else value for value in columns[name]] for name in columns}
    return replace(read, columns=columns)


def _parsed_values(texts: list[str | None], other: VersionRows, name: str) -> list[Any]:
    """A column's values: of the other version's type, where that says its own, else as `data build` has them.

    A slip among numbers is a finding, and no reason to take all of them for text."""
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
    """What most values are: text, true or false, numbers; None where there are none."""
    kinds = Counter(
        bool if isinstance(value, bool) else str if isinstance(value, str) else float
        for value in values
        if value is not None and value != ""
    )
    return kinds.most_common(1)[0][0] if kinds else None


def is_missing(values: Iterable[Any]) -> NDArray[np.bool_]:
    """Which are nothing, or no number."""
    return np.array([value is None or value != value for value in values], bool)
