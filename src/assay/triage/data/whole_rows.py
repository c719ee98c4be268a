"""Finds changes of whole rows: duplicates, changed values in common rows, and labels that fit their rows
less."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray
from scipy import stats

from assay.triage.data.kinds import ColumnKind, is_number
from assay.triage.data.rows import VersionRows, is_missing
from assay.triage.data.sizes import (
    MAX_P_VALUE,
    MIN_SHARE_CHANGE,
    QUANTILE,
    Change,
    Size,
    Strata,
    change,
    share_change,
    without,
)
from assay.triage.data.texts import as_text

CONTENT: tuple[ColumnKind, ...] = ("text", "tokens", "lists")
LABEL_NAMES = (
    "label", "labels", "target", "class", "y", "is_correct", "correct", "score", "rating", "stars", "sentiment",
)  # fmt: skip
MIN_SHARED = 0.2
"""Minimal share of rows in both versions for comparing their values."""
MAX_LABELS = 20
MIN_PROBABILITY = 0.02
"""Lower bound of a label's probability, because classifiers are overconfident."""
FOLDS = 5
MAX_LABEL_P_VALUE = 2e-3
"""There is one label test per label column instead of hundreds of tests."""
LABEL_ROWS = 20_000
Digests = NDArray[np.uint64]


def content_digests(rows: VersionRows, kinds: Mapping[str, ColumnKind]) -> Digests:
    """Return a digest of each row: of its texts and tokens, or of everything but names and times."""
    names = [name for name, kind in kinds.items() if kind in CONTENT]
    names = names or [name for name, kind in kinds.items() if kind not in ("names", "times")]
    if not names:
        return np.arange(rows.num_rows, dtype=np.uint64)  # names and times make no row a copy
    columns = [rows.columns[name] for name in names]
    return np.array(
        [xxhash.xxh3_64_intdigest(json.dumps(values, default=str).encode()) for values in zip(*columns, strict=True)],
        np.uint64,
    )


def duplicate_changes(old: Digests, new: Digests, rng: np.random.Generator) -> Iterator[Change]:
    """Compare the share of duplicates in samples of equal size, because larger samples have more duplicates."""
    least = min(len(old), len(new))
    copies = [_copies(digests) for digests in (old, new)]
    shares = []
    for digests, is_copy in zip((old, new), copies, strict=True):
        # Of versions of about one length all rows count: leaving some out would part copies.
        some = digests if len(digests) < 1.2 * least else digests[rng.choice(len(digests), least, replace=False)]
        shares.append((float(is_copy.mean()) if len(some) == len(digests) else float(_copies(some).mean()), len(some)))
    size = share_change(shares[0][0], shares[0][1], shares[1][0], shares[1][1])
    if abs(size.effect) >= MIN_SHARE_CHANGE and size.p_value < MAX_P_VALUE:
        yield change("duplicates", "duplicates", size, without(*copies))


def _copies(digests: Digests) -> NDArray[np.bool_]:
    is_copy = np.ones(len(digests), bool)
    is_copy[np.unique(digests, return_index=True)[1]] = False
    return is_copy


def changed_values(
    name: str, old: Sequence[Any], new: Sequence[Any], digests: tuple[Digests, Digests]
) -> Iterator[Change]:
    """Find rows that occur once in both versions with different values in this column."""
    once = [_once(digest) for digest in digests]
    shared, at_old, at_new = np.intersect1d(digests[0][once[0]], digests[1][once[1]], return_indices=True)
    if len(shared) < max(50, MIN_SHARED * min(map(len, digests))):
        return
    pairs = zip(once[0][at_old].tolist(), once[1][at_new].tolist(), strict=True)
    is_present = ~is_missing(old)
    others = sum(bool(is_present[row]) and old[row] != new[other] for row, other in pairs)
    share = others / len(shared)
    size = share_change(0.0, len(shared), share, len(shared))
    if share >= MIN_SHARE_CHANGE and size.p_value < MAX_P_VALUE:
        yield change(name, "values", size, rows=len(shared))


def _once(digests: Digests) -> NDArray[np.int64]:
    _, first, counts = np.unique(digests, return_index=True, return_counts=True)
    return np.asarray(first[counts == 1], np.int64)


def label_columns(kinds: Mapping[str, ColumnKind], rows: VersionRows) -> list[str]:
    """Return columns with few values and a label's name, or else the only columns with two values."""
    few = {
        name: values
        for name, kind in kinds.items()
        if kind == "categories"
        and 2 <= len(values := {str(value) for value in rows.columns[name] if value is not None}) <= MAX_LABELS
    }
    named = [name for name in few if name.rpartition(".")[2].lower() in LABEL_NAMES or "label" in name.lower()]
    return (named or [name for name, values in few.items() if len(values) == 2])[:3]


def label_changes(
    name: str, old: VersionRows, new: VersionRows, kinds: Mapping[str, ColumnKind], rng: np.random.Generator
) -> Iterator[Change]:
    """Measure how well labels fit a classifier trained on other old rows. Label errors reduce the fit even if
    the share of each label is unchanged.

    The classifier is a logistic regression on hashed words and categories, trained on folds of the old
    version, so that rows of both versions are equally new to it.
    """
    used = {
        column: kind
        for column, kind in kinds.items()
        if column != name and kind in ("text", "categories", "numbers", "tokens")
    }
    if "text" in used.values():
        used = {column: kind for column, kind in used.items() if kind != "tokens"}
    if not used:
        return
    old, new = (_labelled(rows, name, rng) for rows in (old, new))
    known = {str(value) for value in old.columns[name]}
    is_known = np.array([str(value) in known for value in new.columns[name]], bool)
    new = new.only(np.flatnonzero(is_known))
    if min(old.num_rows, new.num_rows) < 200 or len(known) < 2:
        return
    doubts = _doubts(name, old, new, used)
    if doubts is None:
        return
    (before, others), (now, _) = doubts
    # A label that is changed for another has the doubt of the other instead of its own.
    a_change = float((others - before).mean())
    effect = float(now.mean() - before.mean()) / a_change
    error = float(np.sqrt(before.var() / len(before) + now.var() / len(now))) / a_change
    p_value = float(2 * stats.norm.sf(effect / error)) if effect > 0 else 1.0
    if p_value < MAX_LABEL_P_VALUE and effect >= MIN_SHARE_CHANGE:
        size = Size(0.0, effect, effect, effect - QUANTILE * error, effect + QUANTILE * error, p_value)
        yield change(name, "labels", size)


def _labelled(rows: VersionRows, name: str, rng: np.random.Generator) -> VersionRows:
    present = np.flatnonzero([value is not None for value in rows.columns[name]])
    return rows.only(rng.permutation(present)[:LABEL_ROWS])


def _doubts(
    name: str, old: VersionRows, new: VersionRows, used: Mapping[str, ColumnKind]
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]] | None:
    """Return for each row how strongly its label, and on average the other labels, indicate a label change.

    This is the derivative of the log-likelihood with respect to the share of changed labels, at zero.
    """
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.linear_model import LogisticRegression

    hashed = HashingVectorizer(analyzer=str.split, n_features=2**15, alternate_sign=False, norm="l2", binary=True)
    cuts = {column: _deciles(old.columns[column]) for column, kind in used.items() if kind == "numbers"}
    features = [hashed.transform(_words(rows, used, cuts)) for rows in (old, new)]
    labels = [np.array([str(value) for value in rows.columns[name]]) for rows in (old, new)]
    found: list[list[tuple[Any, Any]]] = [[], []]
    for fold in range(FOLDS):
        train = np.arange(old.num_rows) % FOLDS != fold
        if set(labels[0][train]) != set(labels[0]):
            return None
        model = LogisticRegression(C=1.5, max_iter=200, tol=1e-3).fit(features[0][train], labels[0][train])
        for side, is_tested in enumerate((~train, np.arange(new.num_rows) % FOLDS == fold)):
            rows = np.flatnonzero(is_tested)
            chances = model.predict_proba(features[side][rows])
            num_others = chances.shape[1] - 1
            doubt = ((1 - chances) / num_others - chances) / np.maximum(chances, MIN_PROBABILITY)
            own_doubt = doubt[np.arange(len(rows)), np.searchsorted(model.classes_, labels[side][rows])]
            found[side].append((own_doubt, (doubt.sum(1) - own_doubt) / num_others))
    return [(np.concatenate([g for g, _ in side]), np.concatenate([o for _, o in side])) for side in found]


def _deciles(values: Sequence[Any]) -> NDArray[np.float64]:
    numbers = [float(value) for value in values if is_number(value)]
    return np.quantile(numbers, np.arange(1, 10) / 10) if numbers else np.zeros(0)


def _words(rows: VersionRows, used: Mapping[str, ColumnKind], cuts: Mapping[str, NDArray[np.float64]]) -> list[str]:
    """Return a row as text with one word per feature; categories and deciles of numbers are marked by
    column."""
    parts = []
    for index, (name, kind) in enumerate(used.items()):
        values = rows.columns[name]
        if kind == "numbers":
            positions = np.searchsorted(cuts[name], [value if is_number(value) else np.nan for value in values])
            parts.append([f"{index}={position}" for position in positions.tolist()])
        elif kind == "text":
            parts.append([as_text(value).lower() for value in values])
        elif kind == "tokens":
            parts.append([" ".join(f"{index}:{token_id}" for token_id in set(value or ())) for value in values])
        else:
            parts.append([f"{index}={str(value).replace(' ', '_')}" for value in values])
    return [" ".join(row) for row in zip(*parts, strict=True)]


def matched(strata: Strata, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows of both versions with equal shares of each stratum, excluding stratum -1."""
    counts = [Counter(side[side >= 0].tolist()) for side in strata]
    common = counts[0].keys() & counts[1].keys()
    if not common:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    if len(common) == 1:
        return np.flatnonzero(np.isin(strata.old, [*common])), np.flatnonzero(np.isin(strata.new, [*common]))
    # The smaller side keeps all its rows of a stratum if its share is the smaller one there.
    totals = [sum(count[stratum] for stratum in common) for count in counts]
    share = {
        stratum: min(count[stratum] / total for count, total in zip(counts, totals, strict=True)) for stratum in common
    }
    chosen = []
    for side, total in zip(strata, totals, strict=True):
        rows = [
            rng.permutation(np.flatnonzero(side == stratum))[: round(share[stratum] * total)]
            for stratum in sorted(common)
        ]
        chosen.append(np.sort(np.concatenate(rows)))
    return chosen[0], chosen[1]
