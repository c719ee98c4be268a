"""The data of a run's document: its view, metric series, and the distribution of its predictions."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from assay.records.evaluation import ClassifierEvaluation
from assay.reporting.views.runs.lineage import NO_LINEAGE, Lineage, run_lineage
from assay.reporting.views.runs.run import RunView, run_view
from assay.reporting.views.runs.samples import rollout_samples
from assay.reporting.views.runs.series import Curves, run_curves
from assay.store.ledger.ledger import Ledger
from assay.store.settings import NO_SETTINGS, Settings

if TYPE_CHECKING:
    from assay.statistics.classifier.curves import RocCurve, ScoreHistogram


@dataclass(frozen=True)
class RunPage:
    """The data of a run's document."""

    view: RunView
    curves: Curves
    roc: "RocCurve | None" = None
    """None unless a classifier predicted rows of both classes."""
    histogram: "ScoreHistogram | None" = None
    lineage: Lineage = NO_LINEAGE


def run_page(
    ledger: Ledger,
    run_id: str,
    settings: Settings = NO_SETTINGS,
    *,
    is_brief: bool = False,
    has_all_metrics: bool = False,
) -> RunPage:
    """Return the data of a run's document, given its id or the beginning of it; `is_brief` leaves its predictions
    out."""
    view = run_view(ledger, run_id, settings, has_all_metrics=has_all_metrics)
    samples = rollout_samples(ledger, view.run_id)
    view, curves = view.model_copy(update={"samples": samples}), run_curves(ledger, view.run_id)
    if is_brief or not isinstance(view.evaluation, ClassifierEvaluation):
        return RunPage(view, curves, lineage=NO_LINEAGE if is_brief else run_lineage(ledger, view))
    # Here, for the brief form of the document needs none of it.
    from assay.statistics.classifier.curves import roc_curve, score_histogram
    from assay.statistics.classifier.rows import scores_of
    from assay.statistics.predictions import predictions_of

    scores = scores_of(predictions_of(Path(view.run_dir), view.evaluation), source=view.run_id)
    return RunPage(view, curves, roc_curve(scores), score_histogram(scores), run_lineage(ledger, view))
