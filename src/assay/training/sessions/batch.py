"""The datums of a request as micro-batches of lanes.

    datum 0 1 2 3 4 5 6 7 of 8, 4 lanes -->  lane 0: 0 1   lane 1: 2 3   lane 2: 4 5   lane 3: 6 7

A datum's index in the request decides its lane, so gradients have the same bits on any number of ranks. The model reads
a datum's tokens and then its last target, as a row of a dataset: the targets are the tokens that follow, as a rule.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from assay.base.errors import DataError
from assay.base.shapes import Float32, Int64
from assay.data.dataset.columns import TOKENS
from assay.data.loader.batch import LaneShare, MicroBatch, Ragged
from assay.models.causal_config import CausalShape
from assay.training.sessions.losses import NamedLoss

TARGETS = "target_tokens"


class Datum(NamedTuple):
    """One sequence of a request."""

    tokens: Int64[np.ndarray, "token"]
    """What the model reads."""
    targets: Int64[np.ndarray, "token"]
    """At each token, the one to predict next."""
    inputs: Mapping[str, Float32[np.ndarray, "token"]]
    """What the loss reads besides, by name."""


def check_datums(datums: Sequence[Datum], loss: NamedLoss, shape: CausalShape) -> None:
    """Raise `DataError` about the first datum that the model or the loss cannot take."""
    if not datums:
        raise DataError("data: the request has no datum. Send at least one.")
    for index, datum in enumerate(datums):
        if (problem := _problem_of(datum, loss, shape)) is not None:
            raise DataError(f"data[{index}]: {problem}")


def _problem_of(datum: Datum, loss: NamedLoss, shape: CausalShape) -> str | None:
    num_tokens = len(datum.tokens)
    if not num_tokens:
        return "model_input has no tokens."
    if num_tokens >= shape.max_tokens:
        return (
            f"model_input has {num_tokens:,} tokens, and the model takes {shape.max_tokens:,} with the last target. "
            "Shorten it."
        )
    for name, ids in (("model_input", datum.tokens), (TARGETS, datum.targets)):
        if len(ids) != num_tokens:
            return f"{name} has {len(ids):,} numbers, model_input has {num_tokens:,} tokens."
        if (wrong := ids[(ids < 0) | (ids >= shape.vocab_size)]).size:
            return f"{name} holds {wrong[0]}. Token ids of this model are 0 to {shape.vocab_size - 1:,}."
    if missing := [name for name in loss.required if name not in datum.inputs]:
        return f"loss_fn_inputs has no '{missing[0]}', which the loss reads."
    for name, values in datum.inputs.items():
        if name not in (*loss.required, *loss.optional):
            return f"loss_fn_inputs: '{name}' is not an input of the loss. It reads {', '.join(_names(loss))}."
        if len(values) != num_tokens:
            return f"{name} has {len(values):,} numbers, model_input has {num_tokens:,} tokens."
        if not np.isfinite(values).all():
            return f"{name} holds a number that is not finite."
    return None


def _names(loss: NamedLoss) -> list[str]:
    return [TARGETS, *loss.required, *loss.optional]


def lanes_of(
    datums: Sequence[Datum], loss: NamedLoss, *, num_lanes: int, lanes: Sequence[int], max_tokens: int | None
) -> list[LaneShare]:
    """Return these lanes of a request. `max_tokens`: padded tokens of a micro-batch; a longer datum goes alone."""
    lane_of_datum = np.arange(len(datums)) * num_lanes // len(datums)
    shares = []
    for lane in lanes:
        pieces = _pieces(np.flatnonzero(lane_of_datum == lane).tolist(), datums, max_tokens)
        shares.append(LaneShare(lane, tuple(_micro_batch(indices, datums, loss) for indices in pieces)))
    return shares


def _pieces(indices: list[int], datums: Sequence[Datum], max_tokens: int | None) -> Iterator[list[int]]:
    """Yield the datums of each micro-batch, cut as the loader cuts the rows of a lane."""
    if max_tokens is None:
        if indices:
            yield indices
        return
    by_length = sorted(indices, key=lambda index: -len(datums[index].tokens))
    while by_length:
        size = max(1, max_tokens // (len(datums[by_length[0]].tokens) + 1))
        yield by_length[:size]
        by_length = by_length[size:]


def _micro_batch(indices: Sequence[int], datums: Sequence[Datum], loss: NamedLoss) -> MicroBatch:
    own = [datums[index] for index in indices]
    rows = [np.append(datum.tokens, datum.targets[-1]) for datum in own]
    return MicroBatch(
        row_ids=np.array(indices, np.uint64),
        ragged={TOKENS: _padded(rows), TARGETS: _padded([datum.targets for datum in own])},
        columns={
            name: pa.array([datum.inputs.get(name, np.ones(len(datum.tokens), np.float32)) for datum in own])
            for name in (*loss.required, *loss.optional)
        },
    )


def _padded(rows: Sequence[Int64[np.ndarray, "_"]]) -> Ragged:
    lengths = np.array([len(row) for row in rows], np.int32)
    values = np.zeros((len(rows), int(lengths.max())), np.int64)
    values[np.arange(values.shape[1]) < lengths[:, None]] = np.concatenate(rows)
    return Ragged(values, lengths)
