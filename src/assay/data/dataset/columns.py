"""What a column of a dataset must be, checked once, when it is indexed."""

import pyarrow as pa

from assay.base.errors import DataError

TOKENS = "input_ids"
LABEL = "label"
MASK = "attention_mask"
KEY = "shard_id"
TIME = "created_at"


def check_schema(schema: pa.Schema, *, shard: str, needs_label: bool) -> None:
    """`input_ids` is a list of integers, `label` (if there or needed) an integer or a boolean."""
    for name in (TOKENS, LABEL) if needs_label else (TOKENS,):
        if name not in schema.names:
            raise DataError(
                f"{shard}: column '{name}' is missing; it has {', '.join(schema.names)}. Rename the column, or "
                "tokenise raw text with 'assay data build'."
            )
    tokens = schema.field(TOKENS).type
    is_list = pa.types.is_list(tokens) or pa.types.is_large_list(tokens)
    if not is_list or not pa.types.is_integer(tokens.value_type):
        raise DataError(
            f"{shard}: column '{TOKENS}' has type {tokens}; expected a list of integers (list<int32>). "
            "Tokenise the text with 'assay data build', or write the column with the right type."
        )
    if LABEL in schema.names:
        label = schema.field(LABEL).type
        if not (pa.types.is_integer(label) or pa.types.is_boolean(label)):
            raise DataError(
                f"{shard}: column '{LABEL}' has type {label}; expected integers 0 and 1. Map its values first."
            )


def check_same_schema(schema: pa.Schema, first: pa.Schema, *, shard: str, first_shard: str) -> None:
    """All shards have the columns and types of the first."""
    if schema.equals(first):
        return
    differing = [
        f"'{name}' is {_type_of(schema, name)} here and {_type_of(first, name)} there"
        for name in sorted({*schema.names, *first.names})
        if _type_of(schema, name) != _type_of(first, name)
    ]
    raise DataError(
        f"{shard}: its columns are not those of {first_shard}: {'; '.join(differing) or 'another order'}. "
        "Write the shard again with the schema of the others, or index the two apart."
    )


def _type_of(schema: pa.Schema, name: str) -> str:
    return str(schema.field(name).type) if name in schema.names else "missing"
