"""Texts that several rows have: how many, which of them disagree, which groups share them, what is dropped.

A copy of a text that is trained on and held out is a leak: whoever evaluates on it measures memory. Rows are
told by eight bytes of their texts' digests, so that all of them fit in memory.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from assay.base.seeds import Keys
from assay.data.dataset.fields import SpanFacts


class Duplicates(NamedTuple):
    """What was found, and for each span which of its rows are dropped."""

    num_doubled: int
    """Rows whose text an earlier row has."""
    num_conflicting: int
    """Rows of texts that have several labels."""
    num_shared: int
    """Rows of texts that several groups have and that are not dropped: they leak from one part to another."""
    dropped: list[npt.NDArray[np.bool_]]
    num_dropped: int
    num_retained: int


def find_duplicates(facts: Sequence[SpanFacts], drop: Collection[str]) -> Duplicates:
    """Doubles of all rows; `drop` as `BuildConfig.drop`."""
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
    """Whether the stretch that a place is in, from a first place to the next, holds several values."""
    if not len(values):
        return np.zeros(0, bool)
    run = np.cumsum(is_first) - 1
    firsts = values[is_first][run]
    differs: npt.NDArray[np.bool_] = np.bincount(run, values != firsts)[run] > 0
    return differs
