"""Compares two versions of the data, and separates causes from consequences.

    rows --> kinds of columns --> changes of values, texts, tokens, masks, whole rows
                                     |
             for each change that left rows unchanged: changes that vanish among those rows are consequences

Rows are assumed independent. Differences that any new version has (later times, other ids) are no changes.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from assay.base.errors import DataError
from assay.base.units import number_of
from assay.data.dataset.columns import PROMPT_TOKENS, REJECTED, TOKENS
from assay.records.data_changes import DataChangeKind, DataChanges, DataFinding
from assay.triage.data.kinds import ColumnKind, kind_of
from assay.triage.data.rows import VersionRows, read_versions
from assay.triage.data.sizes import Change, Size, change
from assay.triage.data.texts import length_changes, template_changes
from assay.triage.data.tokens import mask_changes, token_changes
from assay.triage.data.values import value_changes
from assay.triage.data.whole_rows import (
    changed_values,
    content_digests,
    duplicate_changes,
    label_changes,
    label_columns,
    matched,
)

MIN_ROWS = 30
MIN_MATCHED = 0.3
"""A consequence is only tested if at least this share of the rows remains."""
CAUSES: tuple[DataChangeKind, ...] = (
    "columns", "missing", "empty", "truncation", "unseen", "share", "duplicates", "unit", "range", "template",
    "words", "tokens", "mask", "labels", "values", "distribution", "lengths",
)  # fmt: skip
"""Order in which causes are tested as explanations of the others."""
EXPLAINS: dict[DataChangeKind, tuple[DataChangeKind, ...]] = {
    "template": ("words", "tokens", "mask", "lengths", "values"), "words": ("tokens", "mask", "lengths", "values"),
    "tokens": ("mask", "lengths", "values"), "truncation": ("lengths", "values"),
}  # fmt: skip
"""Consequences of changes in every row: tokens follow from texts, masks from tokens."""


def compare_data(before: Path, after: Path, rng: np.random.Generator) -> DataChanges:
    """Compare two datasets, files, or folders of files."""
    old, new = read_versions(before, after)
    if min(old.num_rows, new.num_rows) < MIN_ROWS:
        few = min((old, new), key=lambda rows: rows.num_rows)
        raise DataError(
            f"{few.name}: {number_of(few.num_rows, 'row')}, of which nothing can be told from chance. Give at "
            f"least {MIN_ROWS}; which rows changed, 'assay data diff --rows' says."
        )
    shared = [name for name in old.columns if name in new.columns]
    _refuse_strangers(old, new, shared)
    kinds = {name: kind_of(name, old.columns[name], new.columns[name]) for name in shared}
    found: list[Change] = []
    if old.digest != new.digest:
        found = [*_other_columns(old, new), *_changes(old, new, kinds, rng)]
    ranked = _ranked(found, old, new, kinds, rng)
    return DataChanges(
        rows_before=old.num_rows, rows_after=new.num_rows, results=ranked, columns=dict[str, str](kinds),
        sources={old.name: old.digest, new.name: new.digest},
    )  # fmt: skip


def _refuse_strangers(old: VersionRows, new: VersionRows, shared: Sequence[str]) -> None:
    """Raise `DataError` if the versions share no column, or only one of them has tokens."""
    strangers = f"{old.name} and {new.name} are not two versions of one thing:"
    if not shared:
        columns = "; ".join(f"{rows.name} has {', '.join(rows.columns)}" for rows in (old, new))
        raise DataError(f"{strangers} no column is in both ({columns}).")
    for built, other in ((old, new), (new, old)):
        if built.is_dataset and not other.is_dataset and TOKENS in built.columns and TOKENS not in other.columns:
            raise DataError(
                f"{strangers} {built.name} is a dataset, of tokens, and {other.name} has none. Give two "
                "datasets ('assay data build' makes one), or two files of rows."
            )


def _other_columns(old: VersionRows, new: VersionRows) -> Iterator[Change]:
    for one, other in ((old, new), (new, old)):
        for name in one.columns:
            if name not in other.columns:
                is_new = float(one is new)
                size = Size(1 - is_new, is_new, 2 * is_new - 1, 2 * is_new - 1, 2 * is_new - 1, 0.0)
                yield change(name, "columns", size)


def _changes(
    old: VersionRows, new: VersionRows, kinds: dict[str, ColumnKind], rng: np.random.Generator
) -> list[Change]:
    found: list[Change] = []
    digests = content_digests(old, kinds), content_digests(new, kinds)
    found += duplicate_changes(*digests, rng)
    for name, kind in kinds.items():
        values = old.columns[name], new.columns[name]
        here = list(value_changes(name, kind, *values))
        if kind in ("text", "tokens", "lists"):
            here += length_changes(name, *values)
        if kind in ("text", "lists"):
            here += template_changes(name, *values, rng)
        if kind == "tokens":
            here += token_changes(name, *values, rng)
        if kind == "mask" or name == PROMPT_TOKENS:
            tokens = _tokens_of(name, kinds)
            old_mask, new_mask = ((rows.columns[name], rows.columns.get(tokens)) for rows in (old, new))
            here += mask_changes(name, old_mask, new_mask, rng)
        if not here and kind not in ("text", "tokens", "lists", "names", "times", "nothing"):
            here += changed_values(name, *values, digests)
        found += here
    changed = {change.finding.what for change in found}
    for name in label_columns(kinds, old):
        if name not in changed:
            found += label_changes(name, old, new, kinds, rng)
    return found


def _tokens_of(mask: str, kinds: dict[str, ColumnKind]) -> str:
    """Return the token column that a mask belongs to, or an empty text."""
    tokens = [name for name, kind in kinds.items() if kind == "tokens" and name.rpartition(".")[2] != REJECTED]
    siblings = [name for name in tokens if name.rpartition(".")[0] == mask.rpartition(".")[0]]
    exact = [name for name in siblings if name.rpartition(".")[2] == TOKENS]
    return next(iter([*exact, *siblings, *tokens]), "")


def _ranked(
    found: list[Change], old: VersionRows, new: VersionRows, kinds: dict[str, ColumnKind], rng: np.random.Generator
) -> tuple[DataFinding, ...]:
    """Return the changes that no other explains, each with its consequences."""
    waiting = sorted(
        found,
        key=lambda change: (CAUSES.index(change.finding.kind), change.finding.p_value, -abs(change.finding.effect)),
    )
    causes: list[DataFinding] = []
    while waiting:
        cause = waiting.pop(0)
        consequent = EXPLAINS.get(cause.finding.kind, ())
        explained = {id(change) for change in waiting if change.finding.kind in consequent}
        if waiting and cause.strata is not None:
            rows = matched(cause.strata, rng)
            if min(map(len, rows)) >= MIN_MATCHED * min(old.num_rows, new.num_rows):
                left = _changes(old.only(rows[0]), new.only(rows[1]), kinds, rng)
                explained |= {id(change) for change in waiting if _is_gone(change.finding, left)}
        consequences = tuple(f"{e.finding.what}: {e.finding.kind}" for e in waiting if id(e) in explained)
        causes.append(cause.finding.model_copy(update={"consequences": consequences}))
        waiting = [change for change in waiting if id(change) not in explained]
    return tuple(sorted(causes, key=lambda cause: (not cause.consequences, cause.p_value, -abs(cause.effect))))


def _is_gone(finding: DataFinding, left: list[Change]) -> bool:
    """Return whether the finding disappears among the remaining rows, or is less than half as large."""
    same = [
        change.finding for change in left if (change.finding.what, change.finding.kind) == (finding.what, finding.kind)
    ]
    return not same or abs(same[0].effect) < abs(finding.effect) / 2
