"""Dataset rows as tensors of the classifier."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
import xxhash
from torch import Tensor

from assay.base.errors import DataError
from assay.base.shapes import Int64, Shaped
from assay.data.dataset.columns import LABEL
from assay.data.loader.batch import MicroBatch
from assay.training.methods.classify.config import ClassifyConfig
from assay.training.methods.classify.labels import Labels


def classifier_tensors(
    batch: MicroBatch, config: ClassifyConfig, labels: Labels, device: torch.device
) -> dict[str, Shaped[Tensor, "row ..."]]:
    """Return `input_ids` [row, token], `lengths` [row], `metadata_buckets` [row, column], `labels` [row].

    `attention_mask` [row, token] is only there if some row is padded.
    """
    tensors = {
        "input_ids": torch.from_numpy(batch.tokens.values),
        "lengths": torch.from_numpy(batch.tokens.lengths),
        "metadata_buckets": torch.from_numpy(metadata_buckets(batch, config)),
    }
    if LABEL in batch.columns:  # rows for prediction have none
        tensors["labels"] = labels.targets(batch.columns[LABEL])
    if batch.tokens.is_padded:
        tensors["attention_mask"] = torch.from_numpy(batch.tokens.mask())
    return {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}


def metadata_buckets(batch: MicroBatch, config: ClassifyConfig) -> Int64[np.ndarray, "row column"]:
    """Return the bucket of each metadata value; 0 for a missing value."""
    buckets = np.zeros((len(batch.row_ids), len(config.metadata_columns)), np.int64)
    for index, name in enumerate(config.metadata_columns):
        column = batch.columns[name]
        if name in config.numeric_columns:
            buckets[:, index] = _numeric_buckets(column, name)
        else:
            buckets[:, index] = _category_buckets(column, config.category_buckets)
    return buckets


def _category_buckets(column: pa.Array, num_buckets: int) -> Int64[np.ndarray, "row"]:
    encoded = column.cast(pa.string()).dictionary_encode()
    hashed = [1 + xxhash.xxh3_64_intdigest(value.encode()) % num_buckets for value in encoded.dictionary.to_pylist()]
    # Nulls get the index of the entry appended below: bucket 0.
    indices = encoded.indices.fill_null(len(hashed)).to_numpy(zero_copy_only=False)
    buckets: npt.NDArray[np.int64] = np.array([*hashed, 0], np.int64)[indices]
    return buckets


def _numeric_buckets(column: pa.Array, name: str) -> Int64[np.ndarray, "row"]:
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise DataError(
            f"metadata column '{name}' has type {column.type}, but method.numeric_columns needs numbers. "
            "Name it in method.categorical_columns instead."
        )
    missing = pc.is_null(column, nan_is_null=True).to_numpy(zero_copy_only=False)
    values = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    values = np.where(missing, 0.0, values)
    octaves = np.minimum(4 * np.log2(np.abs(values) + 1), 63).astype(np.int64)
    return np.where(missing, 0, np.where(values < 0, 1, 65) + octaves)
