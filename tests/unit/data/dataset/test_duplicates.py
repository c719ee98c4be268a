"""Duplicates are found in parts of the digest space as a plain search finds them, whatever stays in memory."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.base.errors import StoreError
from assay.data.dataset import duplicates
from assay.data.dataset.duplicates import DuplicateSearch, RowDigests

ROWS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 1), st.integers(0, 2)), max_size=12)
DROPS = st.sets(st.sampled_from(["doubled", "conflicting"]))


def plain_search(rows: list[tuple[int, int, int]], drop: set[str]) -> tuple[int, int, int, list[bool]]:
    labels: dict[int, set[int]] = {}
    for text, label, _ in rows:
        labels.setdefault(text, set()).add(label)
    doubled = [text in [other for other, _, _ in rows[:index]] for index, (text, _, _) in enumerate(rows)]
    conflicting = [len(labels[text]) > 1 for text, _, _ in rows]
    dropped = [
        ("doubled" in drop and one) or ("conflicting" in drop and other)
        for one, other in zip(doubled, conflicting, strict=True)
    ]
    keys: dict[int, set[int]] = {}
    for (text, _, key), is_dropped in zip(rows, dropped, strict=True):
        keys.setdefault(text, set()).update(() if is_dropped else {key})
    shared = [len(keys[text]) > 1 for (text, _, _), gone in zip(rows, dropped, strict=True) if not gone]
    return sum(doubled), sum(conflicting), sum(shared), dropped


@pytest.fixture(params=[0, 1 << 20], ids=["on disk", "in memory"])
def in_memory_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(duplicates, "IN_MEMORY_BYTES", request.param or 1)
    return


@pytest.mark.usefixtures("in_memory_bytes")
@settings(max_examples=60, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=5), DROPS)
def test_duplicates_are_those_of_a_plain_search(spans: list[list[tuple[int, int, int]]], drop: set[str]) -> None:
    scattered = np.random.default_rng(3).integers(0, 2**64, 10, np.uint64)
    with DuplicateSearch() as search:
        for rows in spans:
            texts, labels, keys = np.array(rows, np.uint64).reshape(-1, 3).T
            search.add(RowDigests(scattered[texts], labels, keys))
        found = search.find(drop)
    *counts, dropped = plain_search([row for rows in spans for row in rows], drop)
    assert [found.num_doubled, found.num_conflicting, found.num_shared] == counts
    assert np.concatenate(found.dropped).tolist() == dropped
    assert [len(part) for part in found.dropped] == [len(rows) for rows in spans]
    assert (found.num_dropped, found.num_retained) == (sum(dropped), len(dropped) - sum(dropped))


def test_a_full_disk_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __init__(self, _: int) -> None: ...

        def write(self, _: bytes) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None: ...

    monkeypatch.setattr(duplicates, "SpooledTemporaryFile", Full)
    with DuplicateSearch() as search, pytest.raises(StoreError, match=r"No space left .* set TMPDIR"):
        search.add(RowDigests(*np.zeros((3, 1), np.uint64)))
