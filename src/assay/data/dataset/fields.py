"""Build configuration, and the checks of raw rows: which are dropped, and which type each field gets.

A column has one type in all shards, so the values of all rows are checked before the first shard is written. Types
of CSV columns are inferred: a column is numeric or boolean if every value is.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import date, datetime
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import pyarrow as pa
import xxhash
from pydantic import PositiveInt, field_validator, model_validator

from assay.base.config import FrozenConfig
from assay.base.errors import DataError
from assay.base.value_text import kind_text
from assay.data.dataset.columns import KEY, LABEL, MASK, TIME, TOKENS
from assay.data.dataset.duplicates import RowDigests
from assay.data.dataset.formats.boundaries import control_tokens, pattern_of
from assay.data.dataset.formats.encode import COLUMNS, LEAVES_OUT, UsableRow
from assay.data.dataset.formats.rows import (
    FIELDS,
    OTHER_FIELDS,
    RenderedRow,
    RowReader,
    check_encodable,
    check_format_fields,
    missing_field,
    nested,
)
from assay.data.dataset.formats.template import ENDS, ChatTemplate, ChatTemplateError, load_template, tokenizer_template
from assay.data.dataset.label_values import LabelFacts, LabelKind, is_unlabelled
from assay.data.dataset.raw.lines import FIX_LINE
from assay.data.dataset.raw.span import RawSpan, Row
from assay.data.dataset.raw.type_inference import InferredKind, infer_column_type, infer_kind, parse_number, parse_value
from assay.data.dataset.tokens import (
    END,
    PADDING,
    START,
    load_tokenizer,
    new_vocabulary,
    special_tokens,
    tokenizer_settings,
)
from assay.records.dataset import Format


class BuildConfig(FrozenConfig):
    """How raw rows become a dataset."""

    tokenizer: str
    """A `tokenizer.json`, a folder that holds one, `package:NAME/FOLDER` for one inside an installed Python
    package, or `new:8000` to train one of so many tokens on the texts."""

    format: Format = "labelled"
    """`labelled` texts for classifiers; for language models `text` (all tokens are trained), `chat` (assistant
    messages or completions are trained), `pairs` (chosen and rejected), or `prompts` (with items for graders)."""

    text_field: str = "text"

    chat_template: str | None = None
    """A .jinja file, or `chatml`, which renders messages; None for the tokenizer's own."""

    chat_date: date | None = None
    """Today's date for chat templates that use it."""

    end_token: str | None = None
    """Appended to texts and to completions that are not messages; None for the tokenizer's `eos_token`, empty for
    none."""

    control_tokens: Literal["refuse", "text", "keep"] = "refuse"
    """How control tokens like `<|im_end|>` in texts are handled: an error, plain text, or (`keep`) control tokens, as
    in rows that are already rendered."""

    label_field: str | None = "label"
    """Field of the label. None for rows without a label."""

    label_kind: LabelKind | Literal["auto"] = "auto"
    """`binary`: 0 or 1; `classes`: names; `number`: a quantity. `auto` infers it from all values: only 0 and 1 are
    binary; text, or at most 20 distinct integers, are classes; other numbers are a number."""

    metadata_fields: tuple[str, ...] = ()
    """Fields that become columns; absent or null values are missing."""

    time_field: str | None = None
    """Field of ISO 8601 text that becomes the timestamp column `created_at`; UTC if it has no time zone."""

    key_field: str | None = None
    """Field that becomes the text column `shard_id`, by which rows can be split."""

    key_is_text: bool = False
    """Without `key_field`: `shard_id` is the digest of the text, so copies of a text are on one side of a split."""

    drop: tuple[Literal["doubled", "conflicting", "unusable"], ...] = ()
    """`doubled`: rows whose text occurs in an earlier row; `conflicting`: all rows of a text with several labels;
    `unusable`: rows that cannot be read or trained on, which otherwise stop the build."""

    max_tokens: PositiveInt = 2048
    """Longer labelled rows are cut at the end, before the tokenizer's closing token. Longer rows of format `text` are
    split into several rows. Longer chats, pairs and prompts are dropped, because they must not be cut."""

    rows_per_shard: PositiveInt = 100_000

    rows_per_group: PositiveInt = 1_000
    """Rows per row group, the unit that training reads. Larger ones compress better and mix less."""

    @model_validator(mode="before")
    @classmethod
    def _only_labelled_rows_have_a_label(cls, tree: Any) -> Any:
        if isinstance(tree, dict) and tree.get("format", "labelled") != "labelled":
            if tree.get("label_field") is not None:
                raise ValueError(f"rows of the format '{tree['format']}' have no label; leave --label out")
            return {**tree, "label_field": None}
        return tree

    @model_validator(mode="after")
    def _check_unused_options(self) -> "BuildConfig":
        if self.chat_template is not None and self.format in ("labelled", "text"):
            raise ValueError(f"rows of the format '{self.format}' hold no messages; leave the chat template out")
        if self.end_token is not None and self.format == "labelled":
            raise ValueError("labelled texts have no end token; leave it out")
        if self.format == "labelled" and self.control_tokens == "keep":
            raise ValueError("labelled texts cannot keep control tokens; use control_tokens text or refuse")
        if reserved := sorted(set(COLUMNS[self.format]) & set(self.metadata_fields)):
            raise ValueError(_reserved_name_error(reserved[0]))
        if self.label_field is not None and self.label_field in self.metadata_fields:
            raise ValueError(
                f"the label '{self.label_field}' is among the metadata, so a model would read what it is to "
                "learn; leave it out there"
            )
        if self.format == "labelled" and self.label_field == self.text_field:
            raise ValueError(f"'{self.text_field}' is both the text and the label; name another label field")
        return self

    @field_validator("metadata_fields")
    @classmethod
    def _names_are_free(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if reserved := sorted({TOKENS, MASK, LABEL, KEY, TIME} & set(names)):
            raise ValueError(_reserved_name_error(reserved[0]))
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise ValueError(f"'{twice[0]}' is named twice; once is enough")
        return names

    def fields(self) -> dict[str, str]:
        options = {self.text_field: "--text"} if self.format in ("labelled", "text") else {}
        options |= dict.fromkeys(self.metadata_fields, "--metadata")
        for name, option in (
            (self.label_field, "--label"),
            (self.time_field, "--at"),
            (self.key_field, "--group-by"),
        ):
            if name is not None:
                options.setdefault(name, option)
        return options


FieldTypes = dict[str, pa.DataType]
SeenTypes = dict[str, dict[str, str]]
"""Field -> type of value -> first location."""


def _reserved_name_error(column: str) -> str:
    return f"a dataset has a column '{column}' of its own: rename the field in the source, or leave it out"


class Excluded(NamedTuple):
    """Rows excluded for one reason."""

    num_rows: int = 0
    first: str = ""
    """Location or description of the first row."""

    def plus(self, other: "Excluded") -> "Excluded":
        return Excluded(self.num_rows + other.num_rows, self.first or other.first)


class SpanFacts(NamedTuple):
    """Findings of the first pass over a span."""

    digest: str
    """Digest of the columns that a build reads."""

    fields: frozenset[str]
    """Fields that at least one row has."""
    seen: SeenTypes
    labels: LabelFacts
    empty: Excluded
    """Rows without text."""
    unlabelled: Excluded
    unusable: Excluded
    """Rows that cannot be read or trained on; `first` is the error of the first one."""
    faults: tuple[str, ...]
    """Errors of the first `SHOWN_FAULTS` unusable rows."""
    num_numbers: int
    """Labelled rows whose text is just a number."""
    num_usable: int


def check_span(span: RawSpan, config: BuildConfig) -> tuple[SpanFacts, RowDigests]:
    """Check every field that will be used. Raises `DataError` that names the first invalid location."""
    seen: SeenTypes = {name: {} for name in config.metadata_fields}
    fields: set[str] = set(span.fields or ())
    labels, excluded = LabelFacts(), dict.fromkeys(_REASONS, Excluded())
    digests: list[tuple[int, int, int]] = []
    num_numbers, faults = 0, list[str]()
    for read in _read_rows(span, config):
        where, row, rendered = read.where, read.row, read.rendered
        if span.fields is None:
            fields.update(row)
        if read.fault and len(faults) < SHOWN_FAULTS:
            faults.append(read.fault)
        if rendered is None:
            excluded[read.reason] = excluded[read.reason].plus(Excluded(1, read.fault or where))
            continue
        if config.format == "labelled":
            check_encodable(rendered.group, config.text_field, where)
            num_numbers += parse_number(rendered.group.strip()) is not None
        key = None if config.key_field is None else str(row.get(config.key_field))
        if key is not None:
            check_encodable(key, str(config.key_field), where)
        label = None if config.label_field is None else row[config.label_field]
        if config.label_field is not None:
            if isinstance(label, str):
                check_encodable(label, config.label_field, where)
            labels.add(label, where, field=config.label_field, is_untyped=span.is_untyped)
        if config.time_field is not None:
            time_of(row, config.time_field, where)
        for name, locations in seen.items():
            if (kind := _kind_of(row.get(name), name, where, is_untyped=span.is_untyped)) is not None:
                locations.setdefault(kind, where)
        digests.append((_digest(rendered.text), _digest(str(label)), _digest(str(key))))
    empty, unlabelled, unusable = (excluded[reason] for reason in _REASONS)
    facts = SpanFacts(
        span.digest(columns_of(span, config)),
        frozenset(fields),
        seen,
        labels,
        empty,
        unlabelled,
        unusable,
        tuple(faults),
        num_numbers,
        num_usable=len(digests),
    )
    return facts, RowDigests(*np.array(digests, np.uint64).reshape(-1, 3).T)


def check_fields(config: BuildConfig, fields: Iterable[str], where: str) -> None:
    """Raise `ConfigError` for a requested field that no row has."""
    present = sorted(set(fields))
    check_format_fields(config.format, present, where)
    for name, option in config.fields().items():
        if name not in present:
            raise missing_field(name, option, present, missing=f"{where}: field '{name}' is missing from every row")


def field_types(parts: Iterable[SeenTypes], config: BuildConfig) -> FieldTypes:
    """Return one Arrow type for each metadata field, from the values of all spans."""
    seen: SeenTypes = {name: {} for name in config.metadata_fields}
    for part in parts:
        for name, locations in part.items():
            for type_name, where in locations.items():
                seen[name].setdefault(type_name, where)
    return {name: _one_type(name, locations) for name, locations in seen.items()}


def usable_rows(span: RawSpan, config: BuildConfig) -> Iterator[UsableRow]:
    """Yield the rows that have text and, if requested, a label."""
    for read in _read_rows(span, config):
        if read.reason == "unusable" and "unusable" not in config.drop:
            raise DataError(f"{read.fault} {LEAVES_OUT}")
        if read.rendered is not None:
            yield UsableRow(read.where, read.row, read.rendered)


def columns_of(span: RawSpan, config: BuildConfig) -> Collection[str]:
    """Return the columns that a build reads; for prompts all, because graders may read any field."""
    fields = span.fields
    if fields is None or config.format in ("labelled", "text"):
        return config.fields()
    unread = unread_fields(fields, config)
    return [name for name in fields if name not in unread]


def unread_fields(names: Iterable[str], config: BuildConfig) -> tuple[str, ...]:
    """Return the fields that do not become part of the dataset."""
    if config.format == "prompts":
        return ()
    field_sets = (OTHER_FIELDS.get(config.format, ()), *FIELDS.get(config.format, ()))
    read = {*config.fields(), *(name for field_set in field_sets for name in field_set)}
    return tuple(sorted(name for name in names if name not in read and name.partition(".")[0] not in read))


def row_reader(config: BuildConfig) -> RowReader:
    """Return the reader of rows of the configured format."""
    special = special_tokens(settings_of(config))
    template = _template_of(config, special) if config.format != "labelled" else None
    end = config.end_token if config.end_token is not None else special.get("eos_token", "")
    control = None
    if config.control_tokens != "keep":
        if new_vocabulary(config.tokenizer) is None:
            tokens = {*control_tokens(load_tokenizer(config.tokenizer), template)}
        else:
            tokens = {PADDING, START, end, *(template.special_tokens() if template is not None else ())}
        control = pattern_of(tokens - {""})
    is_text = config.control_tokens == "text"
    return RowReader(config.format, config.text_field, template, end, control, control_is_text=is_text)


def settings_of(config: BuildConfig) -> dict[str, Any]:
    """Return the tokenizer's `tokenizer_config.json`, or that of a new tokenizer."""
    if new_vocabulary(config.tokenizer) is not None:
        end = ENDS.get(config.chat_template or "", END)
        found: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": PADDING, "eos_token": end}
    else:
        found = tokenizer_settings(config.tokenizer)
    return {**found, "eos_token": config.end_token} if config.end_token else found


def _template_of(config: BuildConfig, special: Mapping[str, str]) -> ChatTemplate | None:
    if config.chat_template is not None:
        return load_template(config.chat_template, special, config.chat_date)
    if new_vocabulary(config.tokenizer) is not None:
        return None
    return tokenizer_template(config.tokenizer, special, config.chat_date)


_Reason = Literal["empty", "unlabelled", "unusable"]
SHOWN_FAULTS = 20
_REASONS: tuple[_Reason, ...] = ("empty", "unlabelled", "unusable")


class _ReadRow(NamedTuple):
    where: str
    row: Row
    rendered: RenderedRow | None
    """None for an excluded row."""
    reason: _Reason = "empty"
    """Why the row is excluded."""
    fault: str = ""
    """Error message of an unusable row."""


def _read_rows(span: RawSpan, config: BuildConfig) -> Iterator[_ReadRow]:
    """Yield every row, also excluded ones with the reason."""
    errors: list[DataError] = []
    reader = row_reader(config)
    has_structs = span.fields is not None and config.format not in ("labelled", "text")
    for where, row in span.rows(columns_of(span, config), errors.append):
        yield from _unreadable(span, errors)
        try:
            rendered = reader.read(nested(row) if has_structs else row, where)
        except ChatTemplateError:
            raise
        except DataError as error:
            yield _ReadRow(where, row, None, "unusable", str(error))
            continue
        if rendered is not None and config.label_field is not None and is_unlabelled(row.get(config.label_field)):
            yield _ReadRow(where, row, None, "unlabelled")
        else:
            yield _ReadRow(where, row, rendered)
    yield from _unreadable(span, errors)


def _unreadable(span: RawSpan, errors: list[DataError]) -> Iterator[_ReadRow]:
    """Yield (and remove) the errors of unreadable rows collected so far."""
    while errors:
        yield _ReadRow(str(span.source), {}, None, "unusable", str(errors.pop(0)).removesuffix(f" {FIX_LINE}"))


def time_of(row: Row, field: str, where: str) -> datetime | None:
    """Parse the time of a row; None if it is missing."""
    value = row.get(field)
    if value is None:
        return None
    try:
        return datetime.fromisoformat(value.strip())
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"{where}: field '{field}' is {value!r}; expected ISO 8601 text, e.g. 2026-11-21T03:49:38Z."
        ) from error


def key_of(usable: UsableRow, config: BuildConfig) -> str | None:
    """Return the split key of a row; None if it is missing."""
    if config.key_field is None:
        return f"{_digest(usable.rendered.group):016x}"
    value = usable.row.get(config.key_field)
    return None if value is None else str(value)


def metadata_array(values: list[Any], arrow_type: pa.DataType, name: str, where: str) -> pa.Array:
    """Build the column of a metadata field for some rows."""
    try:
        return pa.array([_as(value, arrow_type) for value in values], arrow_type)
    except (pa.ArrowException, OverflowError, ValueError) as error:
        raise DataError(f"{where} and below: field '{name}' does not fit in {arrow_type}: {error}.") from error


def _as(value: Any, arrow_type: pa.DataType) -> Any:
    return parse_value(value, arrow_type) if isinstance(value, str) else value


def _digest(text: str) -> int:
    # A lone surrogate, e.g. in a label, has no UTF-8 encoding.
    return xxhash.xxh3_64_intdigest(text.encode(errors="surrogatepass"))


_LARGE = "an integer above 2^53"
_ARROW_TYPES: Mapping[str, pa.DataType] = {
    "str": pa.string(),
    "int": pa.int64(),
    _LARGE: pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
}
_WORDS = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false"}
_INFERRED = "text that spells "


def _kind_of(value: Any, name: str, where: str, *, is_untyped: bool) -> str | None:
    """Return the type name of a value for `_one_type`; None if it is missing."""
    if value is None:
        return None
    if isinstance(value, str):
        check_encodable(value, name, where)
        if not is_untyped:
            return "str"
        inferred = infer_kind(value)
        return "str" if inferred is None else _INFERRED + inferred
    if type(value) is int:
        if not -(2**63) <= value < 2**63:
            raise DataError(f"{where}: field '{name}' is {value}, which exceeds 64 bits. Write it as text.")
        return _LARGE if abs(value) > 2**53 else "int"
    if (kind := type(value).__name__) not in _ARROW_TYPES:
        raise DataError(
            f"{where}: field '{name}' is {kind_text(value)}; metadata is text, a number, true or false. "
            "Flatten it first."
        )
    return kind


def _one_type(name: str, locations: Mapping[str, str]) -> pa.DataType:
    if not locations:
        return pa.string()
    if "str" in locations and all(kind == "str" or kind.startswith(_INFERRED) for kind in locations):
        return pa.string()
    if all(kind.startswith(_INFERRED) for kind in locations):
        return infer_column_type([cast(InferredKind, kind.removeprefix(_INFERRED)) for kind in locations])
    kinds: dict[str, str] = {}
    for kind, where in locations.items():
        kinds.setdefault(kind.removeprefix(_INFERRED), where)
    if set(kinds) == {"int", "float"}:
        return pa.float64()
    (one, first_where), *others = (
        (kind, where) for kind, where in kinds.items() if kind != "int" or _LARGE not in kinds
    )
    if others:
        other, here = others[0]
        raise DataError(
            f"{here}: field '{name}' mixes types: {_WORDS.get(other, other)} here, {_WORDS.get(one, one)} in "
            f"{first_where}. Make it all text or all numbers."
        )
    return _ARROW_TYPES[one]
