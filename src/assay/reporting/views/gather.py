"""From the ledger and the run's folder to what a page shows; reads, decides nothing."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from assay.base.errors import DataError
from assay.evaluation.evidence.classifier.compare import ALLOWED_AUC_LOSS, compare_auc, compare_slices
from assay.evaluation.evidence.classifier.curves import roc_curve, score_histogram
from assay.evaluation.evidence.classifier.predictions import (
    PREDICTIONS_FILE,
    evaluation_folder,
    read_predictions,
    scores_of,
)
from assay.records.commit import Commit, CommitQuarantined, RunFinished
from assay.records.evaluation import ClassifierEvaluation
from assay.records.run import Attempt, Run
from assay.reporting.views.pages import ComparedRun, ComparisonPage, RunPage, Series
from assay.store.ledger.ledger import Ledger
from assay.store.ledger.summary import run_status
from assay.store.metrics.curves import Curve, metric_series

MAX_POINTS = 100_000


def run_page(ledger: Ledger, run_id: str) -> RunPage:
    """All that is known of a run (its id, or the start of it)."""
    run = ledger.run(run_id)
    attempts = ledger.attempts(run.run_id)
    entries = ledger.log_entries(run.run_id)
    evaluations = ledger.evaluations(run.run_id)
    evaluation = evaluations[-1] if evaluations else None
    scores = None if evaluation is None else scores_of(_predictions(run, evaluation), source=run.run_id)
    seconds = metric_series(ledger, run.run_id, "step_s", max_points=1_000_000)
    rows = metric_series(ledger, run.run_id, "rows", max_points=1_000_000)
    return RunPage(
        run=run,
        status=run_status(attempts, is_finished=any(isinstance(entry, RunFinished) for entry in entries)),
        attempts=attempts,
        commits=[entry for entry in entries if isinstance(entry, Commit)],
        quarantined_commits=[entry for entry in entries if isinstance(entry, CommitQuarantined)],
        phases=ledger.phase_seconds(run.run_id),
        reached_steps={each.attempt: each.end_step or each.start_step for each in attempts}
        | _reached_steps(ledger, run.run_id, attempts),
        loss=_series(ledger, run.run_id, "loss"),
        throughput=_throughput(ledger, run.run_id),
        rows_per_second=float(rows.values.sum() / seconds.values.sum()) if len(seconds.values) else None,
        validation_auc=_if_it_is_a_curve(_series(ledger, run.run_id, "validation_auc")),
        evaluation=evaluation,
        audit=ledger.audit(run.run_id),
        roc=None if scores is None else roc_curve(scores),
        histogram=None if scores is None else score_histogram(scores),
    )


def comparison_page(
    ledger: Ledger, baseline_id: str, candidate_ids: Sequence[str], *, allowed_loss: float = ALLOWED_AUC_LOSS
) -> ComparisonPage:
    """The candidates beside their baseline; each comparison is recorded in the ledger."""
    baseline = run_page(ledger, baseline_id)
    return ComparisonPage(
        baseline=baseline,
        candidates=[
            _candidate(ledger, baseline, run_page(ledger, run_id), allowed_loss) for run_id in candidate_ids
        ],
    )


def _candidate(ledger: Ledger, baseline: RunPage, page: RunPage, allowed_loss: float) -> ComparedRun:
    if baseline.evaluation is None or page.evaluation is None:
        unfinished = baseline if baseline.evaluation is None else page
        raise DataError(
            f"run {unfinished.run.run_id} has not been evaluated: it is {unfinished.status}. Finish it with "
            f"'assay train --resume {unfinished.run.run_id}' first."
        )
    before = _predictions(baseline.run, baseline.evaluation)
    after = _predictions(page.run, page.evaluation)
    comparison = compare_auc(
        before,
        after,
        baseline_run_id=baseline.run.run_id,
        candidate_run_id=page.run.run_id,
        weights_equal=baseline.evaluation.weights_digest == page.evaluation.weights_digest,
        allowed_loss=allowed_loss,
    )
    ledger.record_comparison(comparison)
    return ComparedRun(page=page, comparison=comparison, slices=compare_slices(before, after))


def _predictions(run: Run, evaluation: ClassifierEvaluation) -> object:
    folder = evaluation_folder(Path(run.run_dir), step=evaluation.step, split=evaluation.split)
    return read_predictions(folder / PREDICTIONS_FILE, sha256=evaluation.predictions_sha256)


def _series(ledger: Ledger, run_id: str, name: str) -> Series | None:
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
    """Tokens over seconds, each summed over about fifty stretches of steps."""
    tokens = metric_series(ledger, run_id, "tokens", max_points=1_000_000)
    seconds = metric_series(ledger, run_id, "step_s", max_points=1_000_000)
    if not len(tokens.steps):
        return None
    parts = np.array_split(np.arange(len(tokens.steps)), min(50, len(tokens.steps)))
    return Series(
        name="tokens/s",
        steps=[int(tokens.steps[part[-1]]) for part in parts],
        values=[_sum(tokens, part) / max(1e-9, _sum(seconds, part)) for part in parts],
    )


def _sum(curve: Curve, part: npt.NDArray[np.intp]) -> float:
    return float(curve.values[part].sum())


def _reached_steps(ledger: Ledger, run_id: str, attempts: Sequence[Attempt]) -> dict[int, int]:
    """The last step that each attempt logged: rolled back ones included."""
    kept = metric_series(ledger, run_id, "loss", max_points=1_000_000)
    lost = metric_series(ledger, run_id, "loss", max_points=1_000_000, lost=True)
    steps = np.concatenate([kept.steps, lost.steps])
    at_s = np.concatenate([kept.at_s, lost.at_s])
    reached = {}
    for attempt in attempts:
        inside = (at_s >= attempt.started_s) & (at_s <= (attempt.ended_s or np.inf))
        if inside.any():
            reached[attempt.attempt] = int(steps[inside].max())
    return reached


def _if_it_is_a_curve(series: Series | None) -> Series | None:
    return series if series is not None and len(set(series.steps)) > 1 else None
