"""Enumerates regions: all attempts that share the values of one to three factors, with at least four units.

A region of two factors has at most the units of either, so small regions are not crossed further. Regions of
one set of factors are a sparse matrix, region x row, with ascending rows, which keeps each unit's rows
together.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import coo_matrix

from assay.base.shapes import Int64
from assay.triage.attempts.table import AttemptTable

MAX_FACTORS = 3
MIN_UNITS = 4
"""With fewer units a region may be the chance of one unit."""


class Regions(NamedTuple):
    """All regions of one set of factors."""

    factors: tuple[int, ...]
    """Indices of the table's factors."""
    values: Int64[np.ndarray, "region factor"]
    members: Any
    """CSR matrix of ones, region x row."""


class _Entries(NamedTuple):
    """Which rows are in which region."""

    rows: Int64[np.ndarray, "entry"]
    codes: Int64[np.ndarray, "entry"]
    values: Int64[np.ndarray, "region factor"]


def all_regions(table: AttemptTable) -> Iterator[Regions]:
    """Yield regions of one factor, then of two, then of three."""
    # A table without units counts its attempts: a row of many is many.
    units = table.units if table.has_units else None
    known: dict[tuple[int, ...], _Entries] = {}
    for count in range(1, MAX_FACTORS + 1):
        for chosen in combinations(range(len(table.factors)), count):
            parents = [known[part] for part in combinations(chosen, count - 1)] if count > 1 else []
            if not all(len(parent.values) for parent in parents):
                known[chosen] = _Entries(np.zeros(0, int), np.zeros(0, int), np.zeros((0, count), int))
                continue
            crossed = _crossed(parents[0], known[chosen[-1:]]) if parents else _single(table, chosen[0])
            known[chosen], members = _large_enough(crossed, units, table)
            if len(known[chosen].values):
                yield Regions(chosen, known[chosen].values, members)


def _single(table: AttemptTable, index: int) -> _Entries:
    factor = table.factors[index]
    return _Entries(factor.rows, factor.codes, np.arange(len(factor.values))[:, None])


def _crossed(one: _Entries, other: _Entries) -> _Entries:
    num_rows = max(int(one.rows.max()), int(other.rows.max())) + 1
    counts = np.bincount(other.rows, minlength=num_rows)
    starts = np.cumsum(counts) - counts
    num_copies = counts[one.rows]
    rows, ours = np.repeat(one.rows, num_copies), np.repeat(one.codes, num_copies)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(num_copies) - num_copies, num_copies)
    codes = ours * len(other.values) + other.codes[starts[rows] + within]
    selected, codes = renumbered(codes, len(one.values) * len(other.values))
    values = np.concatenate(
        [one.values[selected // len(other.values)], other.values[selected % len(other.values)]], axis=1
    )
    return _Entries(rows, codes, values)


def renumbered(
    codes: Int64[np.ndarray, "entry"], size: int
) -> tuple[Int64[np.ndarray, "region"], Int64[np.ndarray, "entry"]]:
    """Return the codes that occur, and the codes renumbered as indices of these: counted if few are possible."""
    if size > 8 * len(codes) + 1_000_000:
        return np.unique(codes, return_inverse=True)
    occurs = np.bincount(codes, minlength=size) > 0
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[codes]


def _large_enough(
    entries: _Entries, units: Int64[np.ndarray, "row"] | None, table: AttemptTable
) -> tuple[_Entries, Any]:
    """Keep regions with enough units that do not contain all rows."""
    rows, codes, values = entries
    num_rows = np.bincount(codes, minlength=len(values))
    if units is None:
        counts = np.bincount(codes, table.attempts[rows], minlength=len(values))
    else:
        counts = num_rows.astype(float)
    is_selected = (counts >= MIN_UNITS) & (num_rows < table.num_rows)
    rows, codes, values = _only(rows, codes, values, is_selected)
    members = _matrix(rows, codes, len(values), table.num_rows)
    if units is not None and len(values):
        is_selected = _num_units(members, units) >= MIN_UNITS
        if not is_selected.all():
            rows, codes, values = _only(rows, codes, values, is_selected)
            members = members[is_selected]
    return _Entries(rows, codes, values), members


def _only(rows: Any, codes: Any, values: Any, is_selected: Any) -> tuple[Any, Any, Any]:
    of_entry = is_selected[codes]
    return rows[of_entry], (np.cumsum(is_selected) - 1)[codes[of_entry]], values[is_selected]


def _matrix(rows: Any, codes: Any, num_regions: int, num_rows: int) -> Any:
    ones = np.ones(len(rows), np.float32)
    return coo_matrix((ones, (codes.astype(np.int32), rows.astype(np.int32))), (num_regions, num_rows)).tocsr()


def _num_units(members: Any, units: Int64[np.ndarray, "row"]) -> Int64[np.ndarray, "region"]:
    """Count units, which are ascending along each region's rows, where they change."""
    of_entry = units[members.indices]
    begins = np.ones(len(of_entry), np.int64)
    begins[1:] = of_entry[1:] != of_entry[:-1]
    begins[members.indptr[:-1]] = 1
    return np.add.reduceat(begins, members.indptr[:-1])
