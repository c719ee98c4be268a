"""Rows as a loader would hand them to a method, without a loader."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from assay.data.loader.batch import MicroBatch, Ragged


def micro_batch(rows: Sequence[Mapping[str, Any]], *, more_padding: int = 0) -> MicroBatch:
    """Rows by column; lists of numbers are padded to the longest, and further where that is asked for."""
    ragged = {name: _ragged([row[name] for row in rows], more_padding) for name in rows[0] if _is_list(rows, name)}
    columns = {name: pa.array([row[name] for row in rows]) for name in rows[0] if not _is_list(rows, name)}
    return MicroBatch(np.arange(len(rows), dtype=np.uint64), ragged, columns)


def _is_list(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    return isinstance(rows[0][name], list)


def _ragged(lists: Sequence[list[int]], more_padding: int) -> Ragged:
    lengths = np.array([len(numbers) for numbers in lists], np.int32)
    values = np.zeros((len(lists), int(lengths.max()) + more_padding), np.int64)
    for line, numbers in zip(values, lists, strict=True):
        line[: len(numbers)] = numbers
    return Ragged(values, lengths)
