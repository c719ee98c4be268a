"""A run's metrics as series of points for plots. Plain values, so tests can construct them."""

import fnmatch
from collections.abc import Mapping, Sequence
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
VALIDATION_ERROR = "validation_*_error"
"""Standard error of a validation metric."""
THROUGHPUT = "tokens_per_s"
GRADER_REWARD = "reward_*"
"""Score of one of several rewards, before its weight. `reward_std` is none."""

SHOWN = (
    "reward", GRADER_REWARD, "length", "truncated", "zero_std", "kl", "entropy", "distinct", "failed_grades",
    "logprob_gap", "drift", "clipped", "loss", "validation_*", "accuracy", "margin", "chosen_reward",
    "rejected_reward", "mean_reward", "token_accuracy", "gradient_norm", "learning_rate",
)  # fmt: skip
"""Patterns of the metrics that pages show."""


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


Curves = Mapping[str, Series]
"""Series by the metric's name."""


def run_curves(ledger: Ledger, run_id: str) -> Curves:
    """Return the metrics that pages show, and the throughput, given the run's full id."""
    names = [summary.name for summary in metric_summaries(ledger, run_id)]
    curves = {
        name: curve
        for pattern in SHOWN
        for name in fnmatch.filter(names, pattern)
        if not fnmatch.fnmatchcase(name, VALIDATION_ERROR) and (curve := _series(ledger, run_id, name)) is not None
    }
    curves.pop("reward_std", None)
    throughput = _throughput(ledger, run_id)
    return curves if throughput is None else {**curves, THROUGHPUT: throughput}


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
        name=THROUGHPUT,
        steps=[int(tokens.steps[part[-1]]) for part in parts],
        values=[_sum(tokens, part) / max(1e-9, _sum(seconds, part)) for part in parts],
    )


def _sum(curve: Curve, part: npt.NDArray[np.intp]) -> float:
    return float(curve.values[part].sum())
