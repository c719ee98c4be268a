"""A run's metrics as series of points, to be drawn over its steps; plain values, so a test can make them up."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from assay.store.ledger.ledger import Ledger
from assay.store.metrics.curves import Curve, metric_series, metric_summaries

MAX_POINTS = 100_000
THROUGHPUT_SEGMENTS = 50
"""Stretches of steps, over each of which the throughput is averaged."""
VALIDATION_CURVE = "validation_"
"""Begins the name of the series of the method's metric."""


OF_METHODS = (
    "accuracy",
    "margin",
    "chosen_reward",
    "rejected_reward",
    "mean_reward",
    "entropy",
    "token_accuracy",
)
"""What methods write down with every step beside the loss, and people watch."""


@dataclass(frozen=True)
class Series:
    """A metric over steps, in order of time: where an attempt died, steps may be there twice."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    is_lost: Sequence[bool] = ()
    """Points of steps that were rolled back; empty where there are none."""

    def committed_points(self) -> tuple[list[float], list[float]]:
        """Return steps and values without those that were rolled back."""
        is_lost = self.is_lost or [False] * len(self.steps)
        points = zip(self.steps, self.values, is_lost, strict=True)
        committed = [(step, value) for step, value, lost in points if not lost]
        return [step for step, _ in committed], [value for _, value in committed]


@dataclass(frozen=True)
class RunSeries:
    """How a run went; None where nothing is on record."""

    loss: Series | None = None
    throughput: Series | None = None
    """Tokens per second, over all ranks."""
    validation: Series | None = None
    """The curve of the evaluations during training, where there were several."""
    learning_rate: Series | None = None
    gradient_norm: Series | None = None
    """Before clipping."""


def run_series(ledger: Ledger, run_id: str) -> RunSeries:
    """The curves of a run by its whole id."""
    names = [summary.name for summary in metric_summaries(ledger, run_id) if summary.name.startswith(VALIDATION_CURVE)]
    validation = _series(ledger, run_id, names[0]) if names else None
    return RunSeries(
        loss=_series(ledger, run_id, "loss"),
        throughput=_throughput(ledger, run_id),
        validation=validation if validation is not None and len(set(validation.steps)) > 1 else None,
        learning_rate=_series(ledger, run_id, "learning_rate"),
        gradient_norm=_series(ledger, run_id, "gradient_norm"),
    )


def method_series(ledger: Ledger, run_id: str) -> tuple[Series, ...]:
    """Those of `OF_METHODS` that the run, named by its whole id, has."""
    known = {summary.name for summary in metric_summaries(ledger, run_id)}
    found = (_series(ledger, run_id, name) for name in OF_METHODS if name in known)
    return tuple(item for item in found if item is not None)


def _series(ledger: Ledger, run_id: str, name: str) -> Series | None:
    """A metric's kept points, and those that were rolled back, in order of time."""
    committed = metric_series(ledger, run_id, name, max_points=MAX_POINTS)
    lost = metric_series(ledger, run_id, name, max_points=MAX_POINTS, lost=True)
    if not len(committed.steps) and not len(lost.steps):
        return None
    order = np.argsort(np.concatenate([committed.at_s, lost.at_s]), kind="stable")
    return Series(
        name=name,
        steps=np.concatenate([committed.steps, lost.steps])[order].tolist(),
        values=np.concatenate([committed.values, lost.values])[order].tolist(),
        is_lost=(order >= len(committed.steps)).tolist(),
    )


def _throughput(ledger: Ledger, run_id: str) -> Series | None:
    tokens = metric_series(ledger, run_id, "tokens", max_points=1_000_000)
    seconds = metric_series(ledger, run_id, "step_s", max_points=1_000_000)
    if not len(tokens.steps):
        return None
    parts = np.array_split(np.arange(len(tokens.steps)), min(THROUGHPUT_SEGMENTS, len(tokens.steps)))
    return Series(
        name="tokens/s",
        steps=[int(tokens.steps[part[-1]]) for part in parts],
        values=[_sum(tokens, part) / max(1e-9, _sum(seconds, part)) for part in parts],
    )


def _sum(curve: Curve, part: npt.NDArray[np.intp]) -> float:
    return float(curve.values[part].sum())
