"""Names and types of dataset columns, and the checks when a dataset is indexed."""

from collections import Counter
from collections.abc import Collection

import pyarrow as pa

from assay.base.errors import DataError
from assay.records.dataset import Format

TOKENS = "input_ids"
LABEL = "label"
MASK = "attention_mask"
KEY = "shard_id"
TIME = "created_at"
SPANS = "trained_spans"
"""Flat pairs [begin, end) of token indices in `input_ids` that are trained (format `chat`)."""
REJECTED = "rejected_ids"
"""The rejected sequence; `input_ids` is the chosen one. Both begin with the prompt."""
PROMPT_TOKENS = "prompt_tokens"
MARGIN = "margin"
ITEM = "item"
"""The item that graders read, as JSON."""
REFERENCE_LOGPROBS = ("ref_chosen_logps", "ref_rejected_logps")
"""Reference logprobs (in nats) of the chosen and rejected completion, by TRL's names."""
COLUMN_COMMANDS = {
    SPANS: "assay data build --format chat",
    **dict.fromkeys((REJECTED, PROMPT_TOKENS, MARGIN), "assay data build --format pairs"),
    ITEM: "assay data build --format prompts",
    **dict.fromkeys(REFERENCE_LOGPROBS, "assay data score"),
}
"""The command that writes a column, for error messages."""
SEQUENCES = (TOKENS, REJECTED)
"""Columns of tokens. A row's length is that of its longest sequence; its cost is the sum of both."""


def check_schema(schema: pa.Schema, *, shard: str, needs_label: bool) -> None:
    """Raise `DataError` unless `input_ids` is a list of integers and `label` (if present or needed) has a valid type.

    Column names must be unique, and Arrow must be able to select rows of each column.
    """
    for name in (TOKENS, LABEL) if needs_label else (TOKENS,):
        if name not in schema.names:
            raise DataError(
                f"{shard}: column '{name}' is missing; it has {', '.join(schema.names)}. Rename the column, or "
                "tokenise raw text with 'assay data build'."
            )
    for name, count in Counter(schema.names).items():
        if count > 1:
            raise DataError(
                f"{shard}: {count} columns are named '{name}'. Write the shard again, each under its own name."
            )
    tokens = schema.field(TOKENS).type
    if not is_ragged(plain_type(tokens)) or not pa.types.is_integer(tokens.value_type):
        raise DataError(
            f"{shard}: column '{TOKENS}' has type {tokens}; expected a list of integers (list<int32>). "
            "Tokenise the text with 'assay data build', or write the column with the right type."
        )
    if MASK in schema.names:
        mask = plain_type(schema.field(MASK).type)
        if not is_ragged(mask) or not _is_number(mask.value_type):
            raise DataError(
                f"{shard}: column '{MASK}' has type {schema.field(MASK).type}; expected a list of ones, as "
                "many as a row has tokens. Drop the column: it follows from the lengths."
            )
    if LABEL in schema.names:
        label = schema.field(LABEL).type
        if not (_is_number(label) or is_text(label)):
            raise DataError(
                f"{shard}: column '{LABEL}' has type {label}; expected 0 and 1, numbers, or text that names "
                "classes. Map its values first."
            )
    for field in plain_schema(schema):
        try:
            pa.nulls(1, field.type).take(pa.array([0]))
        except pa.ArrowNotImplementedError as error:
            raise DataError(
                f"{shard}: column '{field.name}' has type {field.type}, of which Arrow can take no rows "
                f"({error}). Write it with a plainer type, or drop it."
            ) from error


def format_of(schema: pa.Schema) -> Format:
    """Return the format of rows with these columns."""

    def is_list(name: str) -> bool:
        kind = plain_type(schema.field(name).type) if name in schema.names else pa.null()
        return is_ragged(kind) and pa.types.is_integer(kind.value_type)

    if is_list(SPANS):
        return "chat"
    if is_list(REJECTED):
        return "pairs"
    if LABEL in schema.names:
        return "labelled"
    return "prompts" if ITEM in schema.names and is_text(schema.field(ITEM).type) else "text"


def holds_numbers(kind: str) -> bool:
    """Return whether an Arrow type, by its name in a manifest, is numeric."""
    return kind.startswith(("int", "uint", "float", "double", "halffloat"))


def holds_lists(kind: str) -> bool:
    """Return whether an Arrow type, by its name in a manifest, is a list."""
    return kind.startswith(("list", "large_list", "fixed_size_list"))


def sequences_of(columns: Collection[str]) -> tuple[str, ...]:
    """Return the token columns among `columns`."""
    return tuple(name for name in SEQUENCES if name == TOKENS or name in columns)


def check_same_schema(schema: pa.Schema, first: pa.Schema, *, shard: str, first_shard: str) -> None:
    """Raise `DataError` unless a shard has the columns and types of the first one."""
    schema, first = plain_schema(schema), plain_schema(first)
    if schema.equals(first):
        return
    differing = [
        f"'{name}' is {_type_of(schema, name)} here and {_type_of(first, name)} there"
        for name in sorted({*schema.names, *first.names})
        if _type_of(schema, name) != _type_of(first, name)
    ]
    raise DataError(
        f"{shard}: its columns are not those of {first_shard}: {'; '.join(differing) or 'another order'}. "
        "Write the shard again with the schema of the others, or index the two separately."
    )


def plain(table: pa.Table) -> pa.Table:
    """Cast a table to `plain_schema`."""
    schema = plain_schema(table.schema)
    # Cast only if necessary: a list of nulls does not survive a cast to its own type.
    pairs = zip(table.columns, schema.types, strict=True)
    columns = [column if column.type == kind else column.cast(kind) for column, kind in pairs]
    return table if table.schema.equals(schema) else pa.table(columns, schema=schema)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the types as which columns are read: text and binary views, which Arrow cannot select from, become plain.

    All fields become nullable, so that shards which differ only in nullability are compatible.
    """
    return pa.schema([_plain_field(field) for field in schema])


def plain_type(arrow_type: pa.DataType) -> pa.DataType:
    """Return the type as which a column is read; see `plain_schema`."""
    types = pa.types
    if types.is_string_view(arrow_type):
        return pa.string()
    if types.is_binary_view(arrow_type):
        return pa.binary()
    if types.is_struct(arrow_type):
        return pa.struct([_plain_field(field) for field in arrow_type])
    if types.is_map(arrow_type):
        key, item = plain_type(arrow_type.key_type), _plain_field(arrow_type.item_field)
        return pa.map_(arrow_type.key_field.with_type(key), item, arrow_type.keys_sorted)
    if types.is_fixed_size_list(arrow_type):
        return pa.list_(_plain_field(arrow_type.value_field), arrow_type.list_size)
    if types.is_large_list(arrow_type):
        return pa.large_list(_plain_field(arrow_type.value_field))
    if types.is_list(arrow_type):
        return pa.list_(_plain_field(arrow_type.value_field))
    return arrow_type


def is_text(arrow_type: pa.DataType) -> bool:
    """Return whether a type is text, plain or dictionary-encoded."""
    if pa.types.is_dictionary(arrow_type):
        return is_text(arrow_type.value_type)
    types = pa.types
    return any(is_a(arrow_type) for is_a in (types.is_string, types.is_large_string, types.is_string_view))


def is_ragged(arrow_type: pa.DataType) -> bool:
    """Return whether a type is a list of variable length."""
    return bool(pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type))


def column_of(leaf: str, columns: list[str]) -> str:
    """Return the column of a Parquet path (`input_ids.list.element`, `meta.lang`)."""
    return max((name for name in columns if f"{leaf}.".startswith(f"{name}.")), key=len)


def _plain_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, plain_type(field.type))


def _is_number(arrow_type: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(arrow_type) or types.is_boolean(arrow_type) or types.is_floating(arrow_type))


def _type_of(schema: pa.Schema, name: str) -> str:
    return str(schema.field(name).type) if name in schema.names else "missing"
