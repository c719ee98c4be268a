"""Rows that come some at a time are all in the file, with all their columns, or the command says why not."""

import csv
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from assay.base.errors import DataError
from assay.workflows.export import row_files
from assay.workflows.export.row_files import check_text_column, row_writer

Rows = list[dict[str, Any]]


def written(path: Path, *parts: Rows) -> Rows:
    with row_writer(path) as writer:
        for part in parts:
            writer.write(part)
    return pq.read_table(path).to_pylist()


def test_a_column_that_is_empty_at_first_has_the_type_that_it_shows_later(tmp_path: Path) -> None:
    parts: list[Rows] = [
        [{"text": "", "score": None}] * 3,
        [{"text": "a", "score": 0.5}],
        [{"text": "b", "score": None}],
    ]
    assert written(tmp_path / "out.parquet", *parts) == [row for part in parts for row in part]


def test_a_column_that_stays_empty_is_there(tmp_path: Path) -> None:
    rows: Rows = [{"text": "a", "note": None}] * 3
    assert written(tmp_path / "out.parquet", rows, rows) == rows + rows


def test_no_column_of_a_later_row_is_lost(tmp_path: Path) -> None:
    assert written(tmp_path / "out.parquet", [{"text": "a"}, {"text": "b", "note": "x"}]) == [
        {"text": "a", "note": None},
        {"text": "b", "note": "x"},
    ]
    with pytest.raises(DataError, match=r"column 'note' comes up late.*--out .*late\.jsonl"):
        written(tmp_path / "late.parquet", [{"text": "a"}], [{"text": "b", "note": "x"}])
    assert not (tmp_path / "late.parquet").exists()


def test_no_more_rows_are_held_back_than_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "HELD_BACK", 4)
    rows: Rows = [{"text": "a", "score": None}] * 2
    with pytest.raises(DataError, match="the rows have different columns or types"):
        written(tmp_path / "out.parquet", rows, rows, [{"text": "b", "score": 0.5}])


def test_what_parquet_cannot_hold_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the rows have different columns or types"):
        written(tmp_path / "out.parquet", [{"text": "a"}, {"text": 3}])


def test_nothing_is_written_where_the_rows_end_in_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="row 2"), row_writer(tmp_path / "out.parquet") as writer:
        writer.write([{"text": "a", "score": None}])
        raise DataError("row 2")
    assert list(tmp_path.iterdir()) == []


def test_the_likely_text_is_told_from_all_rows_and_not_by_the_longest_of_the_first(tmp_path: Path) -> None:
    rows = [{"maintainer": "A team whose name is longer than what its package is said to be", "about": "to come"}]
    rows += [
        {"maintainer": f"Jo {n % 3}", "about": f"a library that reads files of kind {n} and writes others"}
        for n in range(50)
    ]
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    with pytest.raises(DataError, match=r"rows\.csv: no column 'text'; it has maintainer, about\. .*: --text about\."):
        check_text_column(tmp_path / "rows.csv", "text")
