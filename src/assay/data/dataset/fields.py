"""What the fields of raw rows must be, and which column each becomes.

A metadata column has one type in all shards, so its values are looked at in all rows before the first shard is
written: a shard in which nothing is set must not differ from the others.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
from pydantic import PositiveInt, field_validator

from assay.base.config import FrozenConfig
from assay.base.errors import DataError
from assay.data.dataset.columns import KEY, LABEL, MASK, TIME, TOKENS
from assay.data.dataset.raw_rows import Row, Span


class BuildConfig(FrozenConfig):
    """How raw rows become a dataset."""

    tokenizer: str
    """A `tokenizer.json`, or a folder that holds one."""

    text_field: str = "text"

    label_field: str | None = "label"
    """0 or 1 in each row. None for rows without a label."""

    metadata_fields: tuple[str, ...] = ()
    """Kept as columns; absent or null is missing."""

    time_field: str | None = None
    """ISO 8601 text, kept as a timestamp column `created_at`; without a zone it is UTC."""

    key_field: str | None = None
    """Kept as text in the column `shard_id`, by which rows can be split."""

    max_tokens: PositiveInt = 2048
    """Longer rows are cut at their end; the tokenizer's own closing token stays."""

    rows_per_shard: PositiveInt = 100_000

    rows_per_group: PositiveInt = 1_000
    """The unit that training reads: larger ones compress better and mix less."""

    @field_validator("metadata_fields")
    @classmethod
    def _names_are_free(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        taken = sorted({TOKENS, MASK, LABEL, KEY, TIME} & set(names))
        if taken or len(set(names)) < len(names):
            raise ValueError(
                f"{taken[0] if taken else 'a name'} is the name of another column; rename the field"
            )
        return names


FieldTypes = dict[str, pa.DataType]
SeenTypes = dict[str, dict[str, str]]
"""Field -> type of value -> the first place where the field had it."""


def check_span(span: Span, config: BuildConfig) -> SeenTypes:
    """Look at every field that will be used; raises `DataError` naming the first place that is wrong."""
    seen: SeenTypes = {name: {} for name in config.metadata_fields}
    for where, row in span.rows():
        _refuse_half_characters(text_of(row, config, where), config.text_field, where)
        if config.key_field is not None:
            _refuse_half_characters(str(row.get(config.key_field)), config.key_field, where)
        if config.label_field is not None:
            label_of(row, config.label_field, where)
        if config.time_field is not None:
            time_of(row, config.time_field, where)
        for name, places in seen.items():
            value = row.get(name)
            if isinstance(value, str):
                _refuse_half_characters(value, name, where)
            elif isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise DataError(f"{where}: field '{name}' is {value}, beyond 64 bits. Write it as text.")
            type_name = type(value).__name__
            if type(value) is int and abs(value) > 2**53:
                type_name = _LARGE
            if value is None or type_name in places:
                continue
            if type_name not in _ARROW_TYPES:
                raise DataError(
                    f"{where}: field '{name}' is a {type_name}; metadata is text, a number, true or false. "
                    "Flatten it first."
                )
            places[type_name] = where
    return seen


def field_types(parts: Iterable[SeenTypes], config: BuildConfig) -> FieldTypes:
    """One Arrow type for each metadata field, from what all spans have seen."""
    seen: SeenTypes = {name: {} for name in config.metadata_fields}
    for part in parts:
        for name, places in part.items():
            for type_name, where in places.items():
                seen[name].setdefault(type_name, where)
    return {name: _one_type(name, places) for name, places in seen.items()}


def text_of(row: Row, config: BuildConfig, where: str) -> str:
    """The row's text, which must hold something."""
    text = row.get(config.text_field)
    if not isinstance(text, str):
        found = "missing" if text is None else f"of type {type(text).__name__}"
        raise DataError(
            f"{where}: field '{config.text_field}' is {found}; expected text. Name the right field (--text); "
            f"this row has: {', '.join(row)}."
        )
    if not text:
        raise DataError(f"{where}: field '{config.text_field}' is empty. Drop empty rows.")
    return text


def label_of(row: Row, field: str, where: str) -> int:
    """0 or 1."""
    label = row.get(field)
    if label not in (0, 1, "0", "1"):
        found = "missing" if field not in row else repr(label)
        raise DataError(
            f"{where}: field '{field}' is {found}; expected 0 or 1. Map the labels first, name the right field "
            "(--label), or build without labels (--no-label)."
        )
    return int(label)


def time_of(row: Row, field: str, where: str) -> datetime | None:
    """None where it is missing."""
    value = row.get(field)
    if value is None:
        return None
    try:
        return datetime.fromisoformat(value)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{where}: field '{field}' is {value!r}; expected ISO 8601 text, e.g. 2026-11-21T03:49:38Z."
        ) from error


def metadata_array(values: list[Any], arrow_type: pa.DataType, name: str, where: str) -> pa.Array:
    """A metadata field's column in some rows."""
    try:
        return pa.array(values, arrow_type)
    except (pa.ArrowException, OverflowError) as error:
        raise DataError(f"{where} and below: field '{name}' does not fit in {arrow_type}: {error}.") from error


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


def _one_type(name: str, places: Mapping[str, str]) -> pa.DataType:
    if not places:
        return pa.string()
    if set(places) == {"int", "float"}:
        return pa.float64()
    (one, there), *others = (
        (kind, where) for kind, where in places.items() if kind != "int" or _LARGE not in places
    )
    if others:
        other, here = others[0]
        raise DataError(
            f"{here}: field '{name}' mixes types: {other} here, {one} in {there}. Make it all text or all "
            "numbers."
        )
    return _ARROW_TYPES[one]
