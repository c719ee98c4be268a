"""Decodes rows of a dataset with the trained parts marked, to show what a model will see."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from assay.base.digest import sha256_of_bytes
from assay.base.errors import DataError
from assay.data.dataset.columns import ITEM, PROMPT_TOKENS, REJECTED, SPANS, TOKENS
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.tokens import TOKENIZER_FILE, load_tokenizer


class Example(NamedTuple):
    """One decoded sequence of a row."""

    name: str
    """Row id, and which sequence of the row."""
    num_tokens: int
    parts: tuple[tuple[str, bool], ...]
    """(text, whether it is trained) in order."""
    item: str = ""
    """The item that graders read, as JSON."""


def examples_of(dataset: Dataset, num_rows: int) -> list[Example]:
    """Decode the first rows of the dataset. Raises `DataError` if its tokenizer is not next to the manifest."""
    if dataset.manifest.format == "labelled":
        return []
    file, expected = dataset.folder / TOKENIZER_FILE, dataset.manifest.tokenizer_sha256
    if not file.is_file() or sha256_of_bytes(file.read_bytes()) != expected:
        raise DataError(f"{file}: not the tokenizer that the dataset was built with. Copy that one there.")
    tokenizer = load_tokenizer(file)
    columns = [name for name in (TOKENS, REJECTED, SPANS, PROMPT_TOKENS, ITEM) if name in dataset.manifest.columns]
    found: list[Example] = []
    for group in range(len(dataset.groups)):
        first = int(dataset.groups.first_row[group])
        for index, row in enumerate(dataset.read_row_group(group, columns).slice(0, num_rows).to_pylist()):
            if first + index < num_rows:
                found += _examples(tokenizer, f"row {first + index}", row)
        if first + int(dataset.groups.num_rows[group]) >= num_rows:
            break
    return found


def _examples(tokenizer: Tokenizer, name: str, row: dict[str, Any]) -> Iterator[Example]:
    ids = row[TOKENS]
    if SPANS in row:
        yield _example(tokenizer, name, ids, row[SPANS])
    elif REJECTED in row:
        for which, sequence in (("chosen", ids), ("rejected", row[REJECTED])):
            yield _example(tokenizer, f"{name}, {which}", sequence, [row[PROMPT_TOKENS], len(sequence)])
    elif ITEM in row:
        yield _example(tokenizer, name, ids, [])._replace(item=row[ITEM])
    else:
        yield _example(tokenizer, name, ids, [0, len(ids)])


def _example(tokenizer: Tokenizer, name: str, ids: Sequence[int], spans: Sequence[int]) -> Example:
    # Decode growing prefixes: a piece decoded alone may give another text.
    boundaries = [0, *spans, len(ids)]
    texts = [tokenizer.decode(ids[:boundary], skip_special_tokens=False) for boundary in boundaries]
    offsets = [len(text) for text in texts]
    parts = [
        (texts[-1][begin:end], bool(index % 2)) for index, (begin, end) in enumerate(pairwise(offsets)) if begin < end
    ]
    return Example(name, len(ids), tuple(parts))
