"""The rows of one version of the data, column by column: a dataset, or files as `assay data build` reads them.

Fields of structs and of JSON's objects are columns with dotted names; what a row lacks is missing there."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.base.digest import sha256_of_parts
from assay.base.errors import DataError
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.manifest_file import MANIFEST_FILE
from assay.data.dataset.raw.find import find_spans
from assay.data.dataset.raw.lines import Files
from assay.data.dataset.raw.tables import column_values

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

    def only(self, rows: npt.NDArray[np.int64]) -> "VersionRows":
        """These rows."""
        chosen = rows.tolist()
        columns = {name: [values[row] for row in chosen] for name, values in self.columns.items()}
        return VersionRows(self.name, self.digest, len(chosen), columns)


def read_rows(source: Path) -> VersionRows:
    """All rows of a dataset's folder, a file, or a folder of files."""
    is_dataset = (source / MANIFEST_FILE).is_file()
    return _of_dataset(source) if is_dataset else _of_files(source)


def _of_dataset(folder: Path) -> VersionRows:
    dataset = Dataset.open(folder)
    names = list(dataset.manifest.columns)
    groups = dataset.each_group(lambda group: column_values(dataset.read_row_group(group, names)))
    columns = {
        name: [value for group in groups for value in group[name]] for name in (groups[0] if groups else ())
    }
    return VersionRows(str(folder), dataset.fingerprint, dataset.manifest.num_rows, columns)


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
    if all(span.is_spelled for span in spans):
        columns = {name: _spelled(values) for name, values in columns.items()}
    digest = sha256_of_parts(span.digest(span.fields or ()).encode() for span in spans)
    return VersionRows(str(source), digest, len(rows), columns)


def _flat(row: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _spelled(values: list[Any]) -> list[Any]:
    """Numbers where nearly all of a column's texts spell one; what spells none stays text."""
    numbers = [_number(value) for value in values]
    present = sum(value is not None for value in values)
    if sum(number is not None for number in numbers) < 0.9 * max(1, present):
        return values
    return [value if number is None else number for value, number in zip(values, numbers, strict=True)]


def _number(text: Any) -> float | int | None:
    try:
        return int(text)
    except (TypeError, ValueError):
        pass
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def is_missing(values: Iterable[Any]) -> npt.NDArray[np.bool_]:
    """Which are nothing, or no number."""
    return np.array([value is None or value != value for value in values], bool)
