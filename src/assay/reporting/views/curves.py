"""What is drawn of a run beside its facts: series of points, and its predictions as curves.

Read only where something is drawn: a page, or a terminal. Plain values, so a test can make them up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from assay.evaluation.evidence.classifier.curves import RocCurve, ScoreHistogram, roc_curve, score_histogram
from assay.evaluation.evidence.classifier.predictions import (
    PREDICTIONS_FILE,
    evaluation_folder,
    read_predictions,
    scores_of,
)
from assay.reporting.views.run import RunView, run_view
from assay.store.ledger.ledger import Ledger
from assay.store.metrics.curves import Curve, metric_series

MAX_POINTS = 100_000
STRETCHES = 50
"""Of steps, over which the throughput is averaged."""


@dataclass(frozen=True)
class Series:
    """A metric over steps, in order of time: where an attempt died, steps may be there twice."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    is_lost: Sequence[bool] = ()
    """Points of steps that were rolled back; empty where there are none."""


@dataclass(frozen=True)
class RunCurves:
    """One run's; None or empty where nothing is on record."""

    loss: Series | None = None
    throughput: Series | None = None
    """Tokens per second, over all ranks."""
    validation: Series | None = None
    """Of the evaluations during training, where there were several."""
    roc: RocCurve | None = None
    histogram: ScoreHistogram | None = None


@dataclass(frozen=True)
class RunPage:
    """What a run's page is made of."""

    view: RunView
    curves: RunCurves


def run_page(ledger: Ledger, run_id: str) -> RunPage:
    """A run (its id, or the start of it), as far as it got."""
    view = run_view(ledger, run_id)
    return RunPage(view, run_curves(ledger, view))


def run_curves(ledger: Ledger, view: RunView) -> RunCurves:
    """Everything that a page draws of a run."""
    scores = None if view.evaluation is None else scores_of(predictions(view), source=view.run_id)
    validation = series(ledger, view.run_id, "validation_auc")
    return RunCurves(
        loss=series(ledger, view.run_id, "loss"),
        throughput=_throughput(ledger, view.run_id),
        validation=validation if validation is not None and len(set(validation.steps)) > 1 else None,
        roc=None if scores is None else roc_curve(scores),
        histogram=None if scores is None else score_histogram(scores),
    )


def predictions(view: RunView) -> object:
    """Those of the run's last evaluation, row by row, as a table."""
    assert view.evaluation is not None, f"run {view.run_id} has no evaluation"
    folder = evaluation_folder(Path(view.run_dir), step=view.evaluation.step, split=view.evaluation.split)
    return read_predictions(folder / PREDICTIONS_FILE, sha256=view.evaluation.predictions_sha256)


def series(ledger: Ledger, run_id: str, name: str) -> Series | None:
    """A metric's kept points, and those that were rolled back, in order of time."""
    kept = metric_series(ledger, run_id, name, max_points=MAX_POINTS)
    lost = metric_series(ledger, run_id, name, max_points=MAX_POINTS, lost=True)
    if not len(kept.steps) and not len(lost.steps):
        return None
    order = np.argsort(np.concatenate([kept.at_s, lost.at_s]), kind="stable")
    return Series(
        name=name,
        steps=np.concatenate([kept.steps, lost.steps])[order].tolist(),
        values=np.concatenate([kept.values, lost.values])[order].tolist(),
        is_lost=(order >= len(kept.steps)).tolist(),
    )


def _throughput(ledger: Ledger, run_id: str) -> Series | None:
    tokens = metric_series(ledger, run_id, "tokens", max_points=1_000_000)
    seconds = metric_series(ledger, run_id, "step_s", max_points=1_000_000)
    if not len(tokens.steps):
        return None
    parts = np.array_split(np.arange(len(tokens.steps)), min(STRETCHES, len(tokens.steps)))
    return Series(
        name="tokens/s",
        steps=[int(tokens.steps[part[-1]]) for part in parts],
        values=[_sum(tokens, part) / max(1e-9, _sum(seconds, part)) for part in parts],
    )


def _sum(curve: Curve, part: npt.NDArray[np.intp]) -> float:
    return float(curve.values[part].sum())
