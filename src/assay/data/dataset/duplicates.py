"""Finds duplicate texts: how many, which have conflicting labels, which span groups, and which are dropped.

A text that is both trained on and held out leaks. Texts are compared by 64-bit digests, so that all rows fit in
memory.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from assay.base.seeds import Keys
from assay.data.dataset.fields import SpanFacts


class Duplicates(NamedTuple):
    """Counts of duplicates, and the dropped rows of each span."""

    num_doubled: int
    """Rows whose text occurs in an earlier row."""
    num_conflicting: int
    """Rows whose text occurs with several labels."""
    num_shared: int
    """Rows, not dropped, whose text occurs in several groups: they may leak from one part to another."""
    dropped: list[npt.NDArray[np.bool_]]
    num_dropped: int
    num_retained: int


def find_duplicates(facts: Sequence[SpanFacts], drop: Collection[str]) -> Duplicates:
    """Find duplicates among the rows of all spans; `drop` as `BuildConfig.drop`."""
    texts, labels, keys = (
        np.concatenate([getattr(fact, name) for fact in facts]) for name in ("texts", "label_digests", "keys")
    )
    order = np.argsort(texts, kind="stable")
    is_first = np.ones(len(texts), bool)
    is_first[1:] = texts[order][1:] != texts[order][:-1]
    is_doubled, is_conflicting = np.zeros(len(texts), bool), np.zeros(len(texts), bool)
    is_doubled[order] = ~is_first
    is_conflicting[order] = _differs(labels[order], is_first)
    dropped = np.zeros(len(texts), bool)
    if "conflicting" in drop:
        dropped |= is_conflicting
    if "doubled" in drop:
        dropped |= is_doubled
    retained = order[~dropped[order]]
    still_first = np.ones(len(retained), bool)
    still_first[1:] = texts[retained][1:] != texts[retained][:-1]
    boundaries = np.cumsum([len(fact.texts) for fact in facts])[:-1]
    return Duplicates(
        num_doubled=int(is_doubled.sum()),
        num_conflicting=int(is_conflicting.sum()),
        num_shared=int(_differs(keys[retained], still_first).sum()),
        dropped=list(np.split(dropped, boundaries)),
        num_dropped=int(dropped.sum()),
        num_retained=len(retained),
    )


def _differs(values: Keys, is_first: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return, for each element, whether its run (from one first element to the next) holds several values."""
    if not len(values):
        return np.zeros(0, bool)
    run = np.cumsum(is_first) - 1
    firsts = values[is_first][run]
    differs: npt.NDArray[np.bool_] = np.bincount(run, values != firsts)[run] > 0
    return differs
