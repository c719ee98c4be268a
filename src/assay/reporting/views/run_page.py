"""What a run's page is made of: its facts, its curves, and how its predictions look."""

from dataclasses import dataclass, replace
from pathlib import Path

from assay.records.evaluation import ClassifierEvaluation
from assay.reporting.views.run import RunView, run_view
from assay.reporting.views.series import RunSeries, Series, method_series, run_series
from assay.statistics.classifier.curves import RocCurve, ScoreHistogram, roc_curve, score_histogram
from assay.statistics.classifier.rows import scores_of
from assay.statistics.predictions import predictions_of
from assay.store.ledger.ledger import Ledger


@dataclass(frozen=True)
class RunPage:
    """One run's page."""

    view: RunView
    series: RunSeries
    roc: RocCurve | None = None
    """The curve of a classifier's predictions; None where there are none, or of one class only."""
    histogram: ScoreHistogram | None = None
    of_method: tuple[Series, ...] = ()
    """What its method watches, over the steps."""


def run_page(ledger: Ledger, run_id: str) -> RunPage:
    """A run (its id, or the start of it), as far as it got."""
    view = run_view(ledger, run_id)
    page = RunPage(view, run_series(ledger, view.run_id), of_method=method_series(ledger, view.run_id))
    if not isinstance(view.evaluation, ClassifierEvaluation):
        return page
    scores = scores_of(predictions_of(Path(view.run_dir), view.evaluation), source=view.run_id)
    return replace(page, roc=roc_curve(scores), histogram=score_histogram(scores))
