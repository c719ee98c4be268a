"""Finds the rows that make a step bad: by bisection if numbers are not finite, by comparison if the loss is too high.

Not finite: a set of rows is bad if its loss or its gradient is. Sets are halved until single rows are left.

Too high: the step's rows are compared with the rows of earlier steps *with the same weights*. If those have a normal
loss, the cause is the data, and the rows with the losses that make the difference are named. If the earlier rows have
got worse too, the cause is the weights, and no row is named.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from assay.base.shapes import Bool, Float64, Int
from assay.data.loader.batch import LaneShare, StepShare
from assay.records.replay import RowFinding, RowSearch
from assay.training.numerics import added_in_order
from assay.training.replay.replayer import Replayer

SIGMAS = 6.0
"""A step's loss is the data's fault if it exceeds the median of earlier steps by this many robust standard
deviations."""
MIN_DEVIATION_SHARE = 0.1
"""Smallest deviation as a share of the median, so that steps with equal losses by chance do not flag all others."""


class RowLocation(NamedTuple):
    """The location of a row in a step."""

    lane: int
    micro_batch: int
    row: int
    """Index in the micro-batch."""
    row_id: int


class RowLosses(NamedTuple):
    """Loss sums and weights of rows, each computed alone."""

    sums: Float64[np.ndarray, "row"]
    """[row]: NaN if the forward pass raised an error."""
    weights: Float64[np.ndarray, "row"]
    """[row]: weight in the step's mean."""

    def where(self, chosen: Bool[np.ndarray, "row"] | Int[np.ndarray, "chosen"]) -> "RowLosses":
        return RowLosses(self.sums[chosen], self.weights[chosen])

    def means(self) -> Float64[np.ndarray, "row"]:
        """Return [row]: loss per weight; 0 for a row of zero weight."""
        means: np.ndarray = np.divide(self.sums, self.weights, out=np.zeros_like(self.sums), where=self.weights > 0)
        return means

    def mean(self) -> float:
        """Return the weighted mean; NaN for zero weight."""
        weight = float(self.weights.sum())
        return float(self.sums.sum()) / weight if weight else math.nan


def narrow(rows: Sequence[RowLocation], is_bad: Callable[[Sequence[RowLocation]], bool]) -> list[RowLocation]:
    """Return the rows that are bad alone; a set that is only bad together is returned whole.

    Takes about 2 b log2(n / b) calls for b bad rows among n.
    """
    if not rows or not is_bad(rows):
        return []
    if len(rows) == 1:
        return list(rows)
    middle = len(rows) // 2
    found = narrow(rows[:middle], is_bad) + narrow(rows[middle:], is_bad)
    return found or list(rows)


def row_locations(lanes: Sequence[LaneShare]) -> list[RowLocation]:
    """Return all rows of a step, lane by lane; for RL methods, each completion."""
    return [
        RowLocation(lane.lane, number, row, int(row_id))
        for lane in lanes
        for number, batch in enumerate(lane.micro_batches)
        for row, row_id in enumerate(batch.row_ids)
    ]


class RowSearcher:
    """Searches one step with the weights before it; the caller knows where rows come from."""

    def __init__(self, replayer: Replayer, share: StepShare) -> None:
        self._replayer = replayer
        self._step = replayer.step + 1
        training_samples = self._training_lanes(share, self._step)
        self._lanes = {lane.lane: lane for lane in training_samples}
        self._rows = row_locations(training_samples)
        self._num_rows = sum(lane.num_rows for lane in share.lanes)
        self.num_passes = 0

    def not_finite(self) -> RowSearch:
        """Return the rows whose loss or gradient is not finite, or that raise an error."""
        bad = [
            row
            for lane in self._lanes
            for number in range(len(self._lanes[lane].micro_batches))
            for row in narrow([row for row in self._rows if row[:2] == (lane, number)], self._is_not_finite)
        ]
        is_bad = np.array([row in bad for row in self._rows])
        losses = self._losses(self._rows)
        return self._suspects(is_bad, losses, "a loss or a gradient that is not finite", math.nan)

    def too_high(self, earlier: Sequence[StepShare]) -> RowSearch:
        """Return the rows whose losses raise the step above what the `earlier` steps' rows have now."""
        losses = self._losses(self._rows)
        first = self._step - len(earlier)
        before = np.array([self._mean_loss(share, step) for step, share in enumerate(earlier, first)])
        median = float(np.median(before))
        limit = median + SIGMAS * max(1.4826 * float(np.median(np.abs(before - median))), MIN_DEVIATION_SHARE * median)
        criterion = (
            f"the step's mean loss above {limit:.4g}: that of the {len(earlier):,} steps before, with the "
            f"same weights (median {median:.4g}), plus {SIGMAS:g} robust standard deviations"
        )
        is_high = np.isin(np.arange(len(self._rows)), lifting(losses, limit))
        return self._suspects(is_high, losses, criterion, median)

    def _training_lanes(self, share: StepShare, step: int) -> list[LaneShare]:
        """Return the step's training samples, with the current weights."""
        return [samples.lane for samples in self._replayer.training_samples(share, step=step)]

    def _suspects(
        self, is_bad: Bool[np.ndarray, "row"], losses: RowLosses, criterion: str, earlier_loss: float
    ) -> RowSearch:
        found = [self._rows[index] for index in np.flatnonzero(is_bad)]
        return RowSearch(
            criterion=criterion,
            rows=tuple(
                RowFinding(row_id=row.row_id, location="", lane=row.lane, loss=finite(loss))
                for row, loss in zip(found, losses.means()[is_bad].tolist(), strict=True)
            ),
            num_rows=self._num_rows,
            num_passes=self.num_passes,
            step_loss=finite(losses.mean()),
            loss_without=finite(losses.where(~is_bad).mean()),
            earlier_loss=finite(earlier_loss),
        )

    @torch.no_grad()
    def _mean_loss(self, share: StepShare, step: int) -> float:
        """Return the mean loss of a step's rows, without dropout."""
        forward, model = self._replayer.forward, self._replayer.model
        batches = [batch for lane in self._training_lanes(share, step) for batch in lane.micro_batches]
        self.num_passes += len(batches)
        with _without_dropout(model):
            sums = [float(forward.loss_of(model, batch).sum) for batch in batches]
        return added_in_order(sums) / sum(map(forward.weight_of, batches))

    def _is_not_finite(self, rows: Sequence[RowLocation]) -> bool:
        self.num_passes += 1
        first = rows[0]
        batch = self._lanes[first.lane].micro_batches[first.micro_batch]
        chosen = batch.take([row.row for row in rows])
        try:
            recorded = self._replayer.recomputer.gradient_of_samples(LaneShare(first.lane, (chosen,)), step=self._step)
        except (RuntimeError, IndexError):
            return True
        return not math.isfinite(recorded.loss_sum) or not all(
            bool(gradient.isfinite().all()) for gradient in recorded.gradients
        )

    @torch.no_grad()
    def _losses(self, rows: Sequence[RowLocation]) -> RowLosses:
        """Return the loss of each row alone, without dropout."""
        forward, model = self._replayer.forward, self._replayer.model
        sums, weights = np.full(len(rows), math.nan), np.zeros(len(rows))
        with _without_dropout(model):
            for index, row in enumerate(rows):
                self.num_passes += 1
                chosen = self._lanes[row.lane].micro_batches[row.micro_batch].take([row.row])
                weights[index] = forward.weight_of(chosen)
                try:
                    sums[index] = float(forward.loss_of(model, chosen).sum)
                except (RuntimeError, IndexError):
                    continue
        return RowLosses(sums, weights)


def finite(value: float | None) -> float | None:
    """Return the number, or None for NaN and infinity."""
    return value if value is not None and math.isfinite(value) else None


def lifting(losses: RowLosses, limit: float) -> list[int]:
    """Return the fewest rows, highest losses first, without which the mean is at most `limit`."""
    order = np.argsort(-losses.means(), kind="stable")
    for count in range(len(order)):
        if losses.where(order[count:]).mean() <= limit:
            return sorted(order[:count].tolist())
    return sorted(order.tolist())


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
