"""The same rows are the same, in whatever format they are written; what differs is found all the same."""

import csv
import json
from datetime import date, datetime
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.triage.data.compare import compare_data
from variants import slow

Column = list[Any]
WORDS = ["True", "false", "7", "0", "1.50", "00412", "NA", "null", "nan", " 5", "1e3", "a, b", 'say "so"', ""]
VALUES: list[st.SearchStrategy[Any]] = [
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 3),
    st.floats(),
    st.floats(-1e6, 1e6).map(lambda value: float(round(value))),
    st.dates(date(1990, 1, 1), date(2050, 1, 1)),
    st.datetimes(datetime(1990, 1, 1), datetime(2050, 1, 1)),
    st.sampled_from(WORDS),
    st.sampled_from([str(number) for number in range(12)]),
    st.sampled_from(["True", "False"]),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=30),
]


@st.composite
def columns(draw: st.DrawFn) -> dict[str, Column]:
    """Up to four columns of forty to ninety values of one type each, with some that are not there."""
    num_rows = draw(st.integers(40, 90))
    found = {}
    for number in range(draw(st.integers(1, 4))):
        rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        few = draw(st.lists(draw(st.sampled_from(VALUES)), min_size=1, max_size=12))
        holes = draw(st.sampled_from([0.0, 0.3]))
        picks = rng.integers(0, len(few), num_rows).tolist()
        gone = (rng.random(num_rows) < holes).tolist()
        found[f"c{number}"] = [None if no else few[at] for at, no in zip(picks, gone, strict=True)]
    return found


def written(folder: Path, rows: dict[str, Column], suffixes: tuple[str, ...]) -> list[Path]:
    paths = [folder / f"own{suffix}" for suffix in suffixes]
    for path in paths:
        if path.suffix == ".parquet":
            pq.write_table(pa.table(rows), path)
            continue
        with path.open("w", newline="", encoding="utf-8") as file:
            if path.suffix == ".csv":
                csv.writer(file).writerows([list(rows), *zip(*rows.values(), strict=True)])
            for row in zip(*rows.values(), strict=True) if path.suffix == ".jsonl" else ():
                file.write(json.dumps(dict(zip(rows, row, strict=True)), default=date.isoformat) + "\n")
    return paths


def found(before: Path, after: Path) -> list[tuple[str, str]]:
    changes = compare_data(before, after, np.random.default_rng(0))
    return [(finding.what, finding.kind) for finding in changes.results]


@given(rows=columns())
@settings(max_examples=12, deadline=None)
def test_the_same_rows_have_no_findings_in_whatever_formats_they_are(rows: dict[str, Column]) -> None:
    with TemporaryDirectory() as folder:
        for before, after in permutations(written(Path(folder), rows, (".csv", ".parquet", ".jsonl")), 2):
            assert found(before, after) == [], f"{before.suffix} -> {after.suffix}"


@pytest.mark.parametrize("suffix", [".csv", *slow(".parquet", ".jsonl")])
@pytest.mark.parametrize(
    ("was", "slip", "kind"),
    [
        ([True, False], "maybe", "unseen"),
        ([True, False], None, "missing"),
        ([*range(1, 60)], "NA", "unseen"),
        ([*range(1, 60)], 5_000, "range"),
        (["a", "b"], "c", "unseen"),
    ],
)
def test_what_a_csv_has_otherwise_than_the_file_before_is_found(
    was: Column, slip: Any, kind: str, suffix: str, tmp_path: Path
) -> None:
    before = (was * 2_000)[:2_000]
    after = [slip if row % 20 == 0 else value for row, value in enumerate(before)]
    (tmp_path / "before").mkdir()
    (old,) = written(tmp_path / "before", {"c": before, "d": before}, (suffix,))
    (new,) = written(tmp_path, {"c": after, "d": before}, (".csv",))
    assert ("c", kind) in found(old, new)
