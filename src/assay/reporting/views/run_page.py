"""The data of a run's page: its view, metric series, and the distribution of its predictions."""

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
    """The data of a run's page."""

    view: RunView
    series: RunSeries
    roc: RocCurve | None = None
    """None unless a classifier predicted rows of both classes."""
    histogram: ScoreHistogram | None = None
    of_method: tuple[Series, ...] = ()
    """Metrics of the method over steps."""


def run_page(ledger: Ledger, run_id: str) -> RunPage:
    """Return the page of a run, given its id or the beginning of it."""
    view = run_view(ledger, run_id)
    page = RunPage(view, run_series(ledger, view.run_id), of_method=method_series(ledger, view.run_id))
    if not isinstance(view.evaluation, ClassifierEvaluation):
        return page
    scores = scores_of(predictions_of(Path(view.run_dir), view.evaluation), source=view.run_id)
    return replace(page, roc=roc_curve(scores), histogram=score_histogram(scores))
