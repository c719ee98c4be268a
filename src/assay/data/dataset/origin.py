"""Finds the source file and line of a dataset row by reading and encoding the span of its shard again.

A build stores its sources and settings next to the manifest for this purpose. They are not part of the dataset:
the fingerprint does not depend on them, and a copied dataset may lack them.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from assay.base.errors import AssayError
from assay.base.parsing.nesting import parse_json
from assay.data.dataset.build import ORIGIN_FILE, encoded_rows
from assay.data.dataset.columns import PROMPT_TOKENS, REJECTED, SPANS, TOKENS
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.fields import BuildConfig
from assay.data.dataset.tokens import TOKENIZER_FILE, load_tokenizer

MAX_CHARACTERS, MAX_LOCATIONS = 300, 3
ENCODED = (TOKENS, REJECTED, SPANS, PROMPT_TOKENS)


def row_text(dataset: Dataset, row: int) -> str:
    """Return the beginning of a row as text, decoded with the dataset's own tokenizer; empty if there is none."""
    file = dataset.folder / TOKENIZER_FILE
    if not file.is_file():
        return ""
    tokens = _row(dataset, row, [TOKENS])[TOKENS][:MAX_CHARACTERS]
    text = str(load_tokenizer(file).decode(tokens, skip_special_tokens=False))
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"


def row_origin(dataset: Dataset, row: int) -> str:
    """Return source file and line of a row, and of rows equal to it, or the reason why they are unknown."""
    file = dataset.folder / ORIGIN_FILE
    group = int(np.searchsorted(dataset.groups.first_row, row, side="right")) - 1
    span = re.match(r"part-(\d+)-", Path(dataset.shard_path(group)).name)
    if not file.is_file() or span is None:
        return "the dataset keeps no record of its sources"
    try:
        origin = parse_json(file.read_text(encoding="utf-8"))
        settings = {**origin["config"], "tokenizer": str(dataset.folder / TOKENIZER_FILE)}
        expected = _row(dataset, row, [name for name in ENCODED if name in dataset.manifest.columns])
        encoded = encoded_rows(list(map(Path, origin["sources"])), int(span[1]), BuildConfig(**settings))
        found = [
            row.source_row.where
            for row in encoded
            if all(_plain(row.columns[name]) == value for name, value in expected.items())
        ]
        if found:
            return ", ".join(found[:MAX_LOCATIONS]) + (", ..." if found[MAX_LOCATIONS:] else "")
    except (AssayError, OSError, ValueError, LookupError, TypeError) as error:
        return f"its source cannot be read again: {error}"
    return "its source has changed since the build"


def _row(dataset: Dataset, row: int, columns: Sequence[str]) -> dict[str, Any]:
    group = int(np.searchsorted(dataset.groups.first_row, row, side="right")) - 1
    table = dataset.read_row_group(group, columns)
    return dict(table.slice(row - int(dataset.groups.first_row[group]), 1).to_pylist()[0])


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | str) else np.asarray(value).tolist()
