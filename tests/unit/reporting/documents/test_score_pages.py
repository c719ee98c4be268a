"""Pages of runs whose rows have scores of their own: named metrics, slices, and nothing of a classifier."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from assay.records.evaluation import Metric, ScoreEvaluation
from assay.reporting.documents.comparison import comparison_document, comparison_verdict
from assay.reporting.documents.render import render_document
from assay.reporting.documents.runs.run import run_document
from assay.reporting.documents.runs.run_verdict import run_tiles
from assay.reporting.views.comparison import ComparedRun, ComparisonPage, comparison_view
from assay.reporting.views.runs.run_page import RunPage
from assay.reporting.views.runs.series import Series
from assay.statistics.mean_scores import (
    compare_score_slices,
    compare_scores,
    score_metrics,
    score_slices,
)

ERROR = Metric(name="squared_error", unit="squares", higher_is_better=False)
OF_A_CLASSIFIER = ("AUC", "ROC", "Calibration", "of them positive")


def scored(page: RunPage, offset: float) -> tuple[RunPage, pa.Table]:
    """The page, as if its run were of another method."""
    rng = np.random.default_rng(0)
    sources = np.repeat(["easy", "hard"], 200)
    table = pa.table(
        {
            "row_id": pa.array(np.arange(400), pa.uint64()),
            "squared_error": np.where(sources == "hard", 4.0, 1.0) + offset + rng.normal(0, 0.3, 400),
            "source": sources,
        }
    )
    evaluation = ScoreEvaluation(
        run_id=page.view.run_id, step=400, weights_digest="w", dataset_fingerprint="d", split="validation",
        predictions_sha256="p", overall=score_metrics(table, [ERROR], {}),
        slices=score_slices(table, [ERROR], {}),
    )  # fmt: skip
    return replace(page, view=page.view.model_copy(update={"evaluation": evaluation}), roc=None, histogram=None), table


def test_a_run_page_shows_its_metric_and_where_it_is_worse(run_page):
    page, _ = scored(run_page, 0.0)
    text = render_document(run_document(replace(page, curves={"loss": page.curves["loss"]}), now_s=0.0))
    assert not [word for word in OF_A_CLASSIFIER if word in text]
    assert "squared error (squares)" in text
    assert "wholly to its right" in text and "It is source = hard, with" in text
    assert run_tiles(page.view)[0].name == "squared error on validation"


def test_a_run_page_shows_what_its_method_watches(run_page):
    names = ("chosen_reward", "rejected_reward", "entropy")
    falling = {name: Series(name, [1, 2, 3], [0.0, -0.1, -0.4]) for name in names}
    page = replace(run_page, curves={**run_page.curves, **falling})
    text, plain = render_document(run_document(page, now_s=0.0)), render_document(run_document(run_page, now_s=0.0))
    assert ">Rewards<" in text and "rejected reward" in text and "rejected_reward" not in text and ">Entropy<" in text
    assert ">Rewards<" not in plain and ">Margin<" not in text


@pytest.mark.parametrize(
    ("change", "word", "sentence"),
    [(0.5, "fail", "is worse than the baseline"), (-0.5, "pass", "is better than the baseline")],
)
def test_a_comparison_of_errors_follows_their_direction(run_page, change, word, sentence):
    page, before = scored(run_page, 0.0)
    other, after = scored(run_page, change)
    noise = pa.array(np.asarray(after["squared_error"]) + 0.01 * np.cos(np.arange(400)))
    after = after.set_column(1, "squared_error", noise)
    found = compare_scores(
        before, after, ERROR, baseline_run_id="a", candidate_run_id="b", weights_equal=False, allowed_loss=0.1
    )
    compared = comparison_view(found, page.view, other.view, page="comparison.html")
    page = ComparisonPage(
        page, [ComparedRun(other, compared, compare_score_slices(before, after, [ERROR], weights_equal=False))]
    )
    verdict = comparison_verdict(page)
    assert verdict.word == word and sentence in verdict.sentence
    assert ("0.1 squares" in verdict.sentence) == (word == "fail")
    text = render_document(comparison_document(page))
    assert not [name for name in OF_A_CLASSIFIER if name in text.replace("validation AUC", "")]
    assert "difference of squared error" in text and "to the left of it" in text
