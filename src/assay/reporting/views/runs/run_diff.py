"""The differences between two runs: recipe, data, environment, losses and outcome."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np

from assay.base.config import changed_leaves
from assay.base.errors import AssayError
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.diff import diff_datasets
from assay.records.dataset_diff import DatasetDiff
from assay.reporting.views.runs.run import RunView, run_view
from assay.reporting.views.view import AsWritten, View
from assay.store.ledger.ledger import Ledger
from assay.store.metrics.curves import Curve, metric_series
from assay.store.settings import NO_SETTINGS, Settings

_ALL = 10_000_000
SHOWN_STEPS = 5
"""Number of common steps whose losses are listed, the first and the last included."""


class DifferenceView(View):
    """A value in both runs."""

    name: str
    before: Any
    after: Any


class LossAtStepView(View):
    """The loss of both runs at a step."""

    step: int
    before: float
    after: float


class RunDiffView(View):
    """A comparison of two runs."""

    before: str
    after: str
    recipe: tuple[DifferenceView, ...]
    """Without the dataset's location."""
    is_dataset_equal: bool
    """By fingerprint."""
    dataset: Annotated[DatasetDiff, AsWritten] | None
    environment: tuple[DifferenceView, ...]
    """Code, PyTorch, devices, hosts, workers and parent run."""
    weights_equal: bool
    """Bitwise, of the last commits."""
    first_different_step: int | None
    """Its loss differs."""
    loss: tuple[LossAtStepView, ...]
    """At some common steps."""
    outcome: tuple[DifferenceView, ...]
    """Status, steps, metric, device time, goodput and speed."""


def run_diff(ledger: Ledger, before_id: str, after_id: str, settings: Settings = NO_SETTINGS) -> RunDiffView:
    """Return the differences between two runs, given ids or their beginnings."""
    before, after = (run_view(ledger, run_id, settings) for run_id in (before_id, after_id))
    curves = [metric_series(ledger, run.run_id, "loss", max_points=_ALL) for run in (before, after)]
    first_other, losses = _losses(*curves)
    return RunDiffView(
        before=before.run_id,
        after=after.run_id,
        recipe=tuple(_differing(before.recipe, after.recipe)),
        is_dataset_equal=before.dataset_fingerprint == after.dataset_fingerprint,
        dataset=_dataset_diff(before, after),
        environment=tuple(_differing(_environment(before, ledger), _environment(after, ledger))),
        weights_equal=before.weights_digest is not None and before.weights_digest == after.weights_digest,
        first_different_step=first_other,
        loss=losses,
        outcome=tuple(
            DifferenceView(name=name, before=was, after=now)
            for (name, was), now in zip(_outcome(before).items(), _outcome(after).values(), strict=True)
        ),
    )


def _differing(before: dict[str, Any], after: dict[str, Any]) -> list[DifferenceView]:
    return [
        DifferenceView(name=key, before=was, after=now)
        for key, (was, now) in changed_leaves(before, after).items()
        if key != "data.dataset"
    ]


def _environment(run: RunView, ledger: Ledger) -> dict[str, Any]:
    attempts = ledger.attempts(run.run_id)
    processors = [attempt.processor for attempt in attempts]
    found = {
        "code": [run.code_version, *(attempt.code_version for attempt in attempts)],
        "PyTorch": [processor.torch for processor in processors],
        "processor": [processor.model for processor in processors],
        "instructions": [processor.instructions for processor in processors],
        "hosts": [host for attempt in attempts for host in attempt.hosts],
        "workers": [str(attempt.world_size) for attempt in attempts],
        "forked from": [str(run.parent)] if run.parent else [],
        "store": [run.store_url.partition("://")[0] if "://" in run.store_url else "folder"],
    }
    return {name: ", ".join(dict.fromkeys(values)) or None for name, values in found.items()}


def _dataset_diff(before: RunView, after: RunView) -> DatasetDiff | None:
    if before.dataset_fingerprint == after.dataset_fingerprint:
        return None
    try:
        opened = [Dataset.open(Path(run.recipe["data"]["dataset"])) for run in (before, after)]
    except (AssayError, OSError, KeyError, TypeError):
        return None
    if [run.fingerprint for run in opened] != [before.dataset_fingerprint, after.dataset_fingerprint]:
        return None
    return diff_datasets(*opened)


def _losses(before: Curve, after: Curve) -> tuple[int | None, tuple[LossAtStepView, ...]]:
    steps, before_index, after_index = np.intersect1d(before.steps, after.steps, return_indices=True)
    if not len(steps):
        return None, ()
    before_values, after_values = before.values[before_index], after.values[after_index]
    other = np.flatnonzero((before_values != after_values) & ~(np.isnan(before_values) & np.isnan(after_values)))
    shown = np.unique(np.linspace(0, len(steps) - 1, SHOWN_STEPS).round().astype(int))
    return (
        int(steps[other[0]]) if len(other) else None,
        tuple(LossAtStepView(step=int(steps[at]), before=before_values[at], after=after_values[at]) for at in shown),
    )


def _outcome(run: RunView) -> dict[str, Any]:
    headline = run.evaluation.headline if run.evaluation else None
    audit = run.audit
    return {
        "status": run.status,
        "step": run.step,
        "metric": headline.metric.title if headline else None,
        "value": headline.estimate.value if headline and headline.estimate else None,
        "audit": audit.verdict if audit else None,
        "attempts": len(run.attempts),
        "device_seconds": run.held_s(),
        "evaluation_seconds": run.evaluation_s(),
        "cost": run.cost,
        "currency": run.currency,
        "goodput": run.goodput,
        "lost_steps": run.lost_steps,
        "tokens_per_s": run.speed.tokens_per_s if run.speed else None,
    }
