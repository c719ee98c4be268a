"""Predictions of a method's model for every row of a split.

Rows are cut into micro-batches by the same lanes as in training, so a row's prediction has the same bits on any number
of ranks.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from torch import nn

from assay.base.errors import TrainingError
from assay.data.dataset.columns import ITEM
from assay.data.loader.batch import MicroBatch
from assay.data.loader.lane_shares import LaneShares
from assay.data.loader.loader import Loader
from assay.distributed.ranks import Ranks
from assay.records.cursor import Cursor
from assay.statistics.warnings import SAME_NUMBER, SAME_PROBABILITY
from assay.training.trainer.method import Method
from assay.training.trainer.method_config import (
    BinaryPredictions,
    ClassPredictions,
    NumberPredictions,
    Predictions,
    RowScores,
)


@torch.no_grad()
def predict(model: nn.Module, method: Method, loader: Loader, ranks: Ranks) -> pa.Table | None:
    """Return, on rank 0, a table of row_id, predictions and metadata columns, sorted by row_id; None on other ranks.

    Columns that only graders read are left out, so no slice is cut by them.
    """
    was_training = model.training
    model.eval()
    shares = LaneShares(loader.config.lanes, ranks.world_size)
    parts: list[pa.Table] = []
    for share in loader.shares(Cursor(), shares.of_rank(ranks.rank), loader.steps_per_epoch):
        own = [*(lane.micro_batches for lane in share.lanes), *[()] * (shares.most - len(share.lanes))]
        for micro_batches, num_passes in zip(own, _num_passes(list(map(len, own)), ranks), strict=True):
            parts += [_scored(model, method, batch, ranks.device) for batch in micro_batches]
            for _ in range(num_passes - len(micro_batches)):
                method.predictions(model, method.blank(ranks.device))
    model.train(was_training)
    own_rows = pa.concat_tables(parts) if parts else None
    gathered: list[Any] | None = [None] * ranks.world_size if ranks.rank == 0 else None
    dist.gather_object(own_rows, gathered, group=ranks.control)
    if gathered is None:
        return None
    return pa.concat_tables([part for part in gathered if part is not None]).sort_by("row_id")


def write_predictions(table: pa.Table, path: Path) -> None:
    """Write a file of predictions atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    pq.write_table(table, unfinished, compression="zstd")
    unfinished.replace(path)


def _num_passes(own: list[int], ranks: Ranks) -> list[int]:
    """Return the forward passes of each lane; with sharded weights, all ranks make the same number."""
    if ranks.inner is None:
        return own
    return [max(of_lane) for of_lane in zip(*ranks.all_gather_numbers(own), strict=True)]


def _scored(model: nn.Module, method: Method, batch: MicroBatch, device: torch.device) -> pa.Table:
    predicted = method.predictions(model, method.tensors(batch, device))
    columns = {name: pa.array(values.cpu().numpy()) for name, values in predicted.items()}
    metadata = {name: column for name, column in batch.columns.items() if name not in columns and name != ITEM}
    return pa.table({"row_id": pa.array(batch.row_ids, pa.uint64()), **columns, **metadata})


def validation_metric(table: pa.Table, predictions: Predictions) -> float | None:
    """Return the metric that selects the best commit; None for an AUC with one class."""
    if not isinstance(predictions, BinaryPredictions):
        return float(np.mean(np.asarray(table[predictions.metric.name], np.float64)))
    from assay.statistics.classifier.auc import auc

    labels = np.asarray(table["label"])
    if labels.min() == labels.max():
        return None
    return auc(labels, np.asarray(table["probability"]))


def is_one_score(table: pa.Table, predictions: Predictions) -> bool | None:
    """Return whether every row got the same prediction; None if rows are scored, not predicted."""
    match predictions:
        case BinaryPredictions():
            return bool(np.ptp(np.asarray(table["probability"])) < SAME_PROBABILITY)
        case ClassPredictions():
            return bool(np.ptp(np.asarray(table["predicted"])) == 0)
        case NumberPredictions():
            usual_error = float(np.mean(np.asarray(table["absolute_error"])))
            return bool(np.ptp(np.asarray(table["prediction"])) < SAME_NUMBER * usual_error)
        case RowScores():
            return None


def validation_error(table: pa.Table, predictions: Predictions) -> float | None:
    """Return the standard error of the validation metric for graded completions; else None."""
    if not (isinstance(predictions, RowScores) and predictions.is_sampled):
        return None
    scores = np.asarray(table[predictions.metric.name], np.float64)
    return float(np.std(scores) / np.sqrt(max(1, len(scores) - 1)))


def graded_rows(table: pa.Table, predictions: Predictions) -> pa.Table:
    """Return the rows whose completion has a grade; a failed grade is not a 0."""
    if not (isinstance(predictions, RowScores) and predictions.is_sampled):
        return table
    graded = table.filter(pc.invert(pc.is_nan(table[predictions.metric.name])))
    if not len(graded):
        raise TrainingError(
            f"the graders failed on all {len(table):,} held-out completions, so the model cannot be evaluated. "
            "Fix the grader, and train a new run."
        )
    return graded
