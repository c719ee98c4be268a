"""What the fields of raw rows must be, which rows are left out, and which column each field becomes.

A column has one type in all shards, so its values are looked at in all rows before the first shard is written:
a shard in which nothing is set must not differ from the others. Where a file spells every value as text (CSV),
a column is of numbers, or true and false, if every value spells one.
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
from assay.base.seeds import Keys
from assay.base.value_text import kind_text
from assay.data.dataset.columns import KEY, LABEL, MASK, TIME, TOKENS
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
from assay.data.dataset.formats.template import (
    ENDS,
    ChatTemplate,
    ChatTemplateError,
    load_template,
    tokenizer_template,
)
from assay.data.dataset.label_values import LabelFacts, LabelKind, is_unlabelled
from assay.data.dataset.raw.lines import FIX_LINE
from assay.data.dataset.raw.span import RawSpan, Row
from assay.data.dataset.raw.type_inference import (
    InferredKind,
    infer_column_type,
    infer_kind,
    parse_number,
    parse_value,
)
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
    """What rows are trained for: `labelled` texts; or for a language model `text` (every token), `chat` (what
    the assistant says, or a completion), `pairs` (chosen before rejected), `prompts` (with what graders read).
    """

    text_field: str = "text"

    chat_template: str | None = None
    """A .jinja file, or `chatml`, which renders messages; None for the one that lies beside the tokenizer."""

    chat_date: date | None = None
    """The day that a chat template which asks for it takes for today."""

    end_token: str | None = None
    """Put behind a text and a completion that are no messages; None for the tokenizer's `eos_token`, empty for
    nothing."""

    control_tokens: Literal["refuse", "text", "keep"] = "refuse"
    """What control tokens in texts are, like `<|im_end|>`: an error, text, or (`keep`) the tokens that they
    spell, as in rows that were rendered before."""

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

    drop: tuple[Literal["doubled", "conflicting", "unusable"], ...] = ()
    """`doubled`: rows whose text an earlier row has; `conflicting`: all rows of a text with several labels;
    `unusable`: rows that would be refused because they cannot be read, or nothing learned from them."""

    max_tokens: PositiveInt = 2048
    """Longer labelled rows are cut at their end; the tokenizer's own closing token stays. Longer texts for a
    language model become several rows. What must not be cut (chats, pairs, prompts) is left out."""

    rows_per_shard: PositiveInt = 100_000

    rows_per_group: PositiveInt = 1_000
    """The unit that training reads: larger ones compress better and mix less."""

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
            raise ValueError("labelled texts hold no control tokens, for texts that are predicted hold none")
        if reserved := sorted(set(COLUMNS[self.format]) & set(self.metadata_fields)):
            raise ValueError(_reserved_name_error(reserved[0]))
        if self.label_field is not None and self.label_field in self.metadata_fields:
            raise ValueError(
                f"the label '{self.label_field}' is among the metadata, so a model would read what it is to "
                "learn; leave it out there"
            )
        if self.format == "labelled" and self.label_field == self.text_field:
            raise ValueError(f"'{self.text_field}' is both the text and the label; name what is to be learned")
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
        """Every field that is asked for, and the option that asks."""
        options = {self.text_field: "--text"} if self.format in ("labelled", "text") else {}
        options |= dict.fromkeys(self.metadata_fields, "--metadata")
        for name, option in (
            (self.label_field, "--label"),
            (self.time_field, "--time"),
            (self.key_field, "--group-by"),
        ):
            if name is not None:
                options.setdefault(name, option)
        return options


FieldTypes = dict[str, pa.DataType]
SeenTypes = dict[str, dict[str, str]]
"""Field -> type of value -> the first place where the field had it."""


def _reserved_name_error(column: str) -> str:
    return f"a dataset has a column '{column}' of its own: rename the field in the source, or leave it out"


class Left(NamedTuple):
    """Rows that are left out for one reason."""

    num_rows: int = 0
    first: str = ""
    """Where the first of them is."""

    def and_later(self, other: "Left") -> "Left":
        """What was left out of this stretch and of one behind it."""
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
    unusable: Left
    """Rows that cannot be read or learned from, which `drop` leaves out; the first by what is wrong with it."""
    faults: tuple[str, ...]
    """What is wrong with the first `SHOWN_FAULTS` of those."""
    num_numbers: int
    """Labelled rows whose text is a number and nothing else."""
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
    labels, left = LabelFacts(), dict.fromkeys(_REASONS, Left())
    digests: list[tuple[int, int, int]] = []
    num_numbers, faults = 0, list[str]()
    for read in _read_rows(span, config):
        where, row, rendered = read.where, read.row, read.rendered
        if span.fields is None:
            fields.update(row)
        if read.why and len(faults) < SHOWN_FAULTS:
            faults.append(read.why)
        if rendered is None:
            left[read.reason] = left[read.reason].and_later(Left(1, read.why or where))
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
    texts, label_digests, keys = np.array(digests, np.uint64).reshape(-1, 3).T
    empty, unlabelled, unusable = (left[reason] for reason in _REASONS)
    return SpanFacts(
        frozenset(fields),
        seen,
        labels,
        empty,
        unlabelled,
        unusable,
        tuple(faults),
        num_numbers,
        texts,
        label_digests,
        keys,
    )


def check_fields(config: BuildConfig, fields: Iterable[str], where: str) -> None:
    """Refuse a field that no row has."""
    present = sorted(set(fields))
    check_format_fields(config.format, present, where)
    for name, option in config.fields().items():
        if name not in present:
            raise missing_field(name, option, present, missing=f"{where}: field '{name}' is missing from every row")


def field_types(parts: Iterable[SeenTypes], config: BuildConfig) -> FieldTypes:
    """One Arrow type for each metadata field, from what all spans have seen."""
    seen: SeenTypes = {name: {} for name in config.metadata_fields}
    for part in parts:
        for name, locations in part.items():
            for type_name, where in locations.items():
                seen[name].setdefault(type_name, where)
    return {name: _one_type(name, locations) for name, locations in seen.items()}


def usable_rows(span: RawSpan, config: BuildConfig) -> Iterator[UsableRow]:
    """The rows that say something and, where one is asked for, have a label."""
    for read in _read_rows(span, config):
        if read.reason == "unusable" and "unusable" not in config.drop:
            raise DataError(f"{read.why} {LEAVES_OUT}")
        if read.rendered is not None:
            yield UsableRow(read.where, read.row, read.rendered)


def columns_of(span: RawSpan, config: BuildConfig) -> Collection[str]:
    """What is read of the rows: of a prompt all, as its graders may; of a struct all of its fields."""
    fields = span.fields
    if fields is None or config.format in ("labelled", "text"):
        return config.fields()
    unread = unread_fields(fields, config)
    return [name for name in fields if name not in unread]


def unread_fields(names: Iterable[str], config: BuildConfig) -> tuple[str, ...]:
    """Those of the names of fields that no part of the dataset is made of."""
    if config.format == "prompts":
        return ()
    field_sets = (OTHER_FIELDS.get(config.format, ()), *FIELDS.get(config.format, ()))
    read = {*config.fields(), *(name for field_set in field_sets for name in field_set)}
    return tuple(sorted(name for name in names if name not in read and name.partition(".")[0] not in read))


def row_reader(config: BuildConfig) -> RowReader:
    """What reads a row of the format."""
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
    """The tokenizer's `tokenizer_config.json`, or the one that a new tokenizer gets."""
    if new_vocabulary(config.tokenizer) is not None:
        end = ENDS.get(config.chat_template or "", END)
        found: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": PADDING,
            "eos_token": end,
        }
    else:
        found = tokenizer_settings(config.tokenizer)
    return {**found, "eos_token": config.end_token} if config.end_token else found


def _template_of(config: BuildConfig, special: Mapping[str, str]) -> ChatTemplate | None:
    """The one that is named, or that comes with the tokenizer; None where there is none."""
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
    """None for a row that is left out,"""
    reason: _Reason = "empty"
    """and why."""
    why: str = ""
    """What is wrong with it, where something is."""


def _read_rows(span: RawSpan, config: BuildConfig) -> Iterator[_ReadRow]:
    """Every row; one that is left out because of what is not there is not wrong."""
    refused: list[DataError] = []
    reader = row_reader(config)
    has_structs = span.fields is not None and config.format not in ("labelled", "text")
    for where, row in span.rows(columns_of(span, config), refused.append):
        yield from _unreadable(span, refused)
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
    yield from _unreadable(span, refused)


def _unreadable(span: RawSpan, refused: list[DataError]) -> Iterator[_ReadRow]:
    """The rows that could not be read since it was asked last."""
    while refused:
        yield _ReadRow(str(span.source), {}, None, "unusable", str(refused.pop(0)).removesuffix(f" {FIX_LINE}"))


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


def key_of(usable: UsableRow, config: BuildConfig) -> str | None:
    """What rows are split by; None where it is missing."""
    if config.key_field is None:
        return f"{_digest(usable.rendered.group):016x}"
    value = usable.row.get(config.key_field)
    return None if value is None else str(value)


def metadata_array(values: list[Any], arrow_type: pa.DataType, name: str, where: str) -> pa.Array:
    """A metadata field's column in some rows."""
    try:
        return pa.array([_as(value, arrow_type) for value in values], arrow_type)
    except (pa.ArrowException, OverflowError, ValueError) as error:
        raise DataError(f"{where} and below: field '{name}' does not fit in {arrow_type}: {error}.") from error


def _as(value: Any, arrow_type: pa.DataType) -> Any:
    """What a text spells, where the column is not of text."""
    return parse_value(value, arrow_type) if isinstance(value, str) else value


def _digest(text: str) -> int:
    # Half a character, in a label say, has no bytes of its own.
    return xxhash.xxh3_64_intdigest(text.encode(errors="surrogatepass"))


_LARGE = "an integer beyond 2^53"
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
    """As `_one_type` knows it; None for a missing value."""
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
            raise DataError(f"{where}: field '{name}' is {value}, beyond 64 bits. Write it as text.")
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
