"""What the fields of raw rows must be, which rows are left out, and which column each field becomes.

A column has one type in all shards, so its values are looked at in all rows before the first shard is written:
a shard in which nothing is set must not differ from the others. Where a file spells every value as text (CSV),
a column is of numbers, or true and false, if every value spells one.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash
from pydantic import PositiveInt, field_validator

from assay.base.config import FrozenConfig
from assay.base.errors import ConfigError, DataError
from assay.base.seeds import Keys
from assay.data.dataset.columns import KEY, LABEL, MASK, TIME, TOKENS
from assay.data.dataset.label_values import LabelFacts, LabelKind, is_unlabelled
from assay.data.dataset.raw.span import RawSpan, Row


class BuildConfig(FrozenConfig):
    """How raw rows become a dataset."""

    tokenizer: str
    """A `tokenizer.json`, a folder that holds one, `package:NAME/FOLDER` for one inside an installed Python
    package, or `new:8000` to train one of so many tokens on the texts."""

    text_field: str = "text"

    label_field: str | None = "label"
    """What is to be learned. None for rows without a label."""

    label_kind: LabelKind | Literal["auto"] = "auto"
    """`binary`: 0 or 1; `classes`: names; `number`: a quantity. `auto` tells from all values: 0 and 1 alone are
    binary; text, or at most 20 different whole numbers, are classes; other numbers are a number."""

    metadata_fields: tuple[str, ...] = ()
    """Kept as columns; absent or null is missing."""

    time_field: str | None = None
    """ISO 8601 text, kept as a timestamp column `created_at`; without a zone it is UTC."""

    key_field: str | None = None
    """Kept as text in the column `shard_id`, by which rows can be split."""

    key_is_text: bool = False
    """Without `key_field`: `shard_id` is the text's digest, so copies of a text are on one side of a split."""

    drop: tuple[Literal["doubled", "conflicting"], ...] = ()
    """`doubled`: rows whose text an earlier row has; `conflicting`: all rows of a text with several labels."""

    max_tokens: PositiveInt = 2048
    """Longer rows are cut at their end; the tokenizer's own closing token stays."""

    rows_per_shard: PositiveInt = 100_000

    rows_per_group: PositiveInt = 1_000
    """The unit that training reads: larger ones compress better and mix less."""

    added: ClassVar = frozenset({"label_kind", "key_is_text", "drop"})

    @field_validator("metadata_fields")
    @classmethod
    def _names_are_free(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        taken = sorted({TOKENS, MASK, LABEL, KEY, TIME} & set(names))
        if taken or len(set(names)) < len(names):
            raise ValueError(
                f"{taken[0] if taken else 'a name'} is the name of another column; rename the field"
            )
        return names

    def fields(self) -> dict[str, str]:
        """Every field that is asked for, and the option that asks."""
        asked = {self.text_field: "--text"}
        asked |= dict.fromkeys(self.metadata_fields, "--metadata")
        for name, option in (
            (self.label_field, "--label"),
            (self.time_field, "--time"),
            (self.key_field, "--group-by"),
        ):
            if name is not None:
                asked.setdefault(name, option)
        return asked


FieldTypes = dict[str, pa.DataType]
SeenTypes = dict[str, dict[str, str]]
"""Field -> type of value -> the first place where the field had it."""


class Left(NamedTuple):
    """Rows that are left out for one reason."""

    num_rows: int = 0
    first: str = ""
    """Where the first of them is."""

    def and_later(self, other: "Left") -> "Left":
        """Of this stretch and of one behind it."""
        return Left(self.num_rows + other.num_rows, self.first or other.first)


class SpanFacts(NamedTuple):
    """What the first pass learns of a span; the arrays have an entry for each row that is kept."""

    fields: frozenset[str]
    """That some row has."""
    seen: SeenTypes
    labels: LabelFacts
    empty: Left
    """Rows without text."""
    unlabelled: Left
    texts: Keys
    """Digests of the texts,"""
    label_digests: Keys
    """of the labels,"""
    keys: Keys
    """and of the keys; of nothing where none are asked for."""


def check_span(span: RawSpan, config: BuildConfig) -> SpanFacts:
    """Look at every field that will be used; raises `DataError` naming the first place that is wrong."""
    seen: SeenTypes = {name: {} for name in config.metadata_fields}
    fields: set[str] = set(span.fields or ())
    labels, empty, unlabelled = LabelFacts(), Left(), Left()
    digests: list[tuple[int, int, int]] = []
    for where, row in span.rows(config.fields()):
        if span.fields is None:
            fields.update(row)
        left = reason_to_leave(row, config, where)
        if left == "empty":
            empty = empty.and_later(Left(1, where))
            continue
        if left == "unlabelled":
            unlabelled = unlabelled.and_later(Left(1, where))
            continue
        text = row[config.text_field]
        _refuse_half_characters(text, config.text_field, where)
        key = None if config.key_field is None else str(row.get(config.key_field))
        if key is not None:
            _refuse_half_characters(key, str(config.key_field), where)
        label = None if config.label_field is None else row[config.label_field]
        if config.label_field is not None:
            if isinstance(label, str):
                _refuse_half_characters(label, config.label_field, where)
            labels.add(label, where, field=config.label_field, is_spelled=span.is_spelled)
        if config.time_field is not None:
            time_of(row, config.time_field, where)
        for name, places in seen.items():
            if (kind := _kind_of(row.get(name), name, where, is_spelled=span.is_spelled)) is not None:
                places.setdefault(kind, where)
        digests.append((_digest(text), _digest(str(label)), _digest(str(key))))
    texts, label_digests, keys = np.array(digests, np.uint64).reshape(-1, 3).T
    return SpanFacts(frozenset(fields), seen, labels, empty, unlabelled, texts, label_digests, keys)


def check_fields(config: BuildConfig, fields: Iterable[str], where: str) -> None:
    """Refuse a field that no row has."""
    there = sorted(set(fields))
    for name, option in config.fields().items():
        if name not in there:
            guesses = difflib.get_close_matches(name, there, n=1, cutoff=0.5)
            hint = f" Perhaps you meant {option} {guesses[0]}." if guesses else ""
            without = ", or build without labels (--no-label)" if option == "--label" else ""
            raise ConfigError(
                f"{where}: field '{name}' is missing from every row ({option}).{hint} Name one of those that "
                "are "
                f"there{without}: {', '.join(there)}."
            )


def field_types(parts: Iterable[SeenTypes], config: BuildConfig) -> FieldTypes:
    """One Arrow type for each metadata field, from what all spans have seen."""
    seen: SeenTypes = {name: {} for name in config.metadata_fields}
    for part in parts:
        for name, places in part.items():
            for type_name, where in places.items():
                seen[name].setdefault(type_name, where)
    return {name: _one_type(name, places) for name, places in seen.items()}


def kept_rows(span: RawSpan, config: BuildConfig) -> Iterator[tuple[str, Row]]:
    """The rows that have a text and, where one is asked for, a label."""
    for where, row in span.rows(config.fields()):
        if reason_to_leave(row, config, where) is None:
            yield where, row


def reason_to_leave(row: Row, config: BuildConfig, where: str) -> Literal["empty", "unlabelled"] | None:
    """Why a row cannot be learned from: nothing is wrong with it, something is not there."""
    text = row.get(config.text_field)
    if text is None or (isinstance(text, str) and not text.strip()):
        return "empty"
    if not isinstance(text, str):
        raise DataError(
            f"{where}: field '{config.text_field}' is of type {type(text).__name__}; expected text. Name the "
            "right "
            f"field (--text); this row has: {', '.join(row)}."
        )
    if config.label_field is not None and is_unlabelled(row.get(config.label_field)):
        return "unlabelled"
    return None


def time_of(row: Row, field: str, where: str) -> datetime | None:
    """None where it is missing."""
    value = row.get(field)
    if value is None:
        return None
    try:
        return datetime.fromisoformat(value.strip())
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"{where}: field '{field}' is {value!r}; expected ISO 8601 text, e.g. 2026-11-21T03:49:38Z."
        ) from error


def key_of(row: Row, config: BuildConfig) -> str | None:
    """What rows are split by; None where it is missing."""
    if config.key_field is None:
        return f"{_digest(row[config.text_field]):016x}"
    value = row.get(config.key_field)
    return None if value is None else str(value)


def metadata_array(values: list[Any], arrow_type: pa.DataType, name: str, where: str) -> pa.Array:
    """A metadata field's column in some rows."""
    try:
        return pa.array([_as(value, arrow_type) for value in values], arrow_type)
    except (pa.ArrowException, OverflowError, ValueError) as error:
        raise DataError(f"{where} and below: field '{name}' does not fit in {arrow_type}: {error}.") from error


def _as(value: Any, arrow_type: pa.DataType) -> Any:
    """What a text spells, where the column is not of text."""
    if not isinstance(value, str) or pa.types.is_string(arrow_type):
        return value
    if pa.types.is_boolean(arrow_type):
        return value.strip().lower() == "true"
    return int(value) if pa.types.is_integer(arrow_type) else float(value)


def _digest(text: str) -> int:
    # Half a character, in a label say, has no bytes of its own.
    return xxhash.xxh3_64_intdigest(text.encode(errors="surrogatepass"))


def _refuse_half_characters(text: str, name: str, where: str) -> None:
    """Halves of UTF-16's pairs: JSON can spell one alone, and no file of text can hold it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: field '{name}' holds {text[error.start]!a}, half a character. Mend or drop the line."
        ) from error


_LARGE = "an integer beyond 2^53"
_ARROW_TYPES: Mapping[str, pa.DataType] = {
    "str": pa.string(),
    "int": pa.int64(),
    _LARGE: pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
}
_SPELLED = "text that spells "
_SPELLINGS = (
    ("int", re.compile(r"[+-]?(0|[1-9]\d{0,14})")),
    ("float", re.compile(r"[+-]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?|[+-]?inf(inity)?|nan", re.I)),
    ("bool", re.compile(r"true|false", re.I)),
)


def _kind_of(value: Any, name: str, where: str, *, is_spelled: bool) -> str | None:
    """As `_one_type` knows it; None for a missing value."""
    if value is None:
        return None
    if isinstance(value, str):
        _refuse_half_characters(value, name, where)
        if not is_spelled:
            return "str"
        spelled = (kind for kind, pattern in _SPELLINGS if pattern.fullmatch(value))
        return next((_SPELLED + kind for kind in spelled), "str")
    if type(value) is int:
        if not -(2**63) <= value < 2**63:
            raise DataError(f"{where}: field '{name}' is {value}, beyond 64 bits. Write it as text.")
        return _LARGE if abs(value) > 2**53 else "int"
    if (kind := type(value).__name__) not in _ARROW_TYPES:
        raise DataError(
            f"{where}: field '{name}' is a {kind}; metadata is text, a number, true or false. Flatten it first."
        )
    return kind


def _one_type(name: str, places: Mapping[str, str]) -> pa.DataType:
    if not places:
        return pa.string()
    if "str" in places and all(kind == "str" or kind.startswith(_SPELLED) for kind in places):
        return pa.string()
    kinds: dict[str, str] = {}
    for kind, where in places.items():
        kinds.setdefault(kind.removeprefix(_SPELLED), where)
    if set(kinds) == {"int", "float"}:
        return pa.float64()
    (one, there), *others = (
        (kind, where) for kind, where in kinds.items() if kind != "int" or _LARGE not in kinds
    )
    if others and all(kind.startswith(_SPELLED) for kind in places):
        return pa.string()
    if others:
        other, here = others[0]
        raise DataError(
            f"{here}: field '{name}' mixes types: {other} here, {one} in {there}. Make it all text or all "
            "numbers."
        )
    return _ARROW_TYPES[one]
