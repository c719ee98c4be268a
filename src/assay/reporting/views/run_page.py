"""What a run's page is made of: its facts, its curves, and how its predictions look."""

from dataclasses import dataclass
from pathlib import Path

from assay.evaluation.evidence.classifier.curves import RocCurve, ScoreHistogram, roc_curve, score_histogram
from assay.evaluation.evidence.classifier.rows import scores_of
from assay.evaluation.evidence.predictions import predictions_of
from assay.records.evaluation import ClassifierEvaluation
from assay.reporting.views.curves import RunCurves, run_curves
from assay.reporting.views.run import RunView, run_view
from assay.store.ledger.ledger import Ledger


@dataclass(frozen=True)
class RunPage:
    """One run's page."""

    view: RunView
    curves: RunCurves
    roc: RocCurve | None = None
    """The curve of a classifier's predictions; None where there are none, or of one class only."""
    histogram: ScoreHistogram | None = None


def run_page(ledger: Ledger, run_id: str) -> RunPage:
    """A run (its id, or the start of it), as far as it got."""
    view = run_view(ledger, run_id)
    curves = run_curves(ledger, view.run_id)
    if not isinstance(view.evaluation, ClassifierEvaluation):
        return RunPage(view, curves)
    scores = scores_of(predictions_of(Path(view.run_dir), view.evaluation), source=view.run_id)
    return RunPage(view, curves, roc_curve(scores), score_histogram(scores))
