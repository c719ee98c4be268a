"""A run's metrics as series of points for plots. Plain values, so tests can construct them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from assay.store.ledger.ledger import Ledger
from assay.store.metrics.curves import Curve, metric_series, metric_summaries

MAX_POINTS = 100_000
THROUGHPUT_SEGMENTS = 50
"""Number of ranges of steps over which throughput is averaged."""
VALIDATION_CURVE = "validation_"
"""Prefix of the validation metric's name."""


OF_METHODS = (
    "accuracy",
    "margin",
    "chosen_reward",
    "rejected_reward",
    "mean_reward",
    "entropy",
    "token_accuracy",
)
"""Metrics other than the loss that methods log at every step."""


@dataclass(frozen=True)
class Series:
    """A metric in order of time. Steps that were rolled back and repeated occur twice."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    is_lost: Sequence[bool] = ()
    """Marks points that were rolled back; empty if there are none."""

    def committed_points(self) -> tuple[list[float], list[float]]:
        """Return steps and values without those that were rolled back."""
        is_lost = self.is_lost or [False] * len(self.steps)
        points = zip(self.steps, self.values, is_lost, strict=True)
        committed = [(step, value) for step, value, lost in points if not lost]
        return [step for step, _ in committed], [value for _, value in committed]


@dataclass(frozen=True)
class RunSeries:
    """The metrics of a run; None if not recorded."""

    loss: Series | None = None
    throughput: Series | None = None
    """Tokens per second over all ranks."""
    validation: Series | None = None
    """None with fewer than two evaluations."""
    learning_rate: Series | None = None
    gradient_norm: Series | None = None
    """Before clipping."""


def run_series(ledger: Ledger, run_id: str) -> RunSeries:
    """Return the series of a run, given its full id."""
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
    """Return those of `OF_METHODS` that the run logged."""
    known = {summary.name for summary in metric_summaries(ledger, run_id)}
    found = (_series(ledger, run_id, name) for name in OF_METHODS if name in known)
    return tuple(item for item in found if item is not None)


def _series(ledger: Ledger, run_id: str, name: str) -> Series | None:
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
