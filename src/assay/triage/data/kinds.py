"""Classifies columns by the values of both versions; the kind decides which tests apply."""

import re
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any, Literal

from assay.data.dataset.columns import SPANS

ColumnKind = Literal["numbers", "categories", "text", "names", "times", "tokens", "mask", "lists", "nothing"]
"""`names`: a distinct value per row (ids, paths), whose values carry no information. `lists`: lists that are
not tokens, e.g. chat messages."""

FEW_VALUES = 20
"""Numbers with at most this many distinct values are categories."""
IGNORED = -100
"""The label that PyTorch's losses ignore."""
SAMPLE = 4_000
_TIME = re.compile(r"(^|[_.])(at|time|timestamp|date|datetime|created|updated|ts)($|[_.])|_at$", re.IGNORECASE)
_ID = re.compile(r"(^|[_.])(id|uid|uuid|guid|index|idx|row|key|hash|sha256|path|file|url)$", re.IGNORECASE)
EPOCH_S = (5e8, 5e9)
"""1985 to 2128, in seconds since the epoch."""


def kind_of(name: str, old: Sequence[Any], new: Sequence[Any]) -> ColumnKind:
    """Classify a column by its values in both versions."""
    present = [*_some(old), *_some(new)]
    if not present:
        return "nothing"
    most = 0.9 * len(present)
    if sum(isinstance(value, list) for value in present) >= most:
        return _list_kind(name, [value for value in present if isinstance(value, list)])
    if sum(is_number(value) for value in present) >= most:
        return _number_kind(name, [value for value in present if is_number(value)])
    texts = [value for value in present if isinstance(value, str)]
    if len(texts) < most:
        return "categories"
    return _text_kind(texts, len(set(texts)) / len(texts))


def is_number(value: Any) -> bool:
    """Return whether it is a number and not a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _some(values: Sequence[Any]) -> list[Any]:
    """Return a sample of present values from the whole column."""
    present = [value for value in values if value is not None and value == value]
    return present[:: max(1, len(present) // SAMPLE)]


def _list_kind(name: str, lists: list[list[Any]]) -> ColumnKind:
    parts = [part for list_ in lists for part in list_[:1_000]]
    if not parts or not all(isinstance(part, int) for part in parts):
        return "lists"
    values = set(parts)
    if name.rpartition(".")[2] == SPANS or values <= {0, 1} or IGNORED in values:
        return "mask"
    return "tokens"


def _number_kind(name: str, numbers: list[float]) -> ColumnKind:
    values = set(numbers)
    is_epoch = EPOCH_S[0] <= min(values) and max(values) <= EPOCH_S[1] * 1e3
    if is_epoch and _TIME.search(name):
        return "times"
    is_whole = all(float(value).is_integer() for value in values)
    if is_whole and len(values) > 0.9 * len(numbers) and (_ID.search(name) or _counts_on(numbers)):
        return "names"
    return "categories" if len(values) <= FEW_VALUES else "numbers"


def _counts_on(numbers: list[float]) -> bool:
    """Return whether the numbers increase from row to row, with at most one decrease where the second version
    begins."""
    falls = sum(after <= before for before, after in pairwise(numbers))
    return len(numbers) > 20 and falls <= 1


def _text_kind(texts: list[str], share_of_own: float) -> ColumnKind:
    if all(_is_time(text) for text in texts[:200]):
        return "times"
    has_spaces = sum(bool(re.search(r"\S\s+\S", text)) for text in texts) / len(texts)
    if share_of_own > 0.5:
        return "text" if has_spaces > 0.3 else "names"
    mean_length = sum(map(len, texts)) / len(texts)
    return "text" if has_spaces > 0.5 and (mean_length > 60 or share_of_own > 0.2) else "categories"


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return len(text) >= 8
