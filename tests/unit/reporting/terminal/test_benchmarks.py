"""Benchmark results on a terminal."""

import pytest

from assay.records.benchmark import BenchmarkResult, Contamination
from assay.records.evaluation import Estimate
from assay.reporting.documents.benchmarks import (
    contamination_text,
    history_document,
    not_searched_text,
    results_document,
)
from assay.reporting.terminal.document import print_document
from assay.reporting.views.benchmark_history import matrix_of, score_row
from assay.training.methods.sft.config import NATS_PER_TOKEN

LEAK = Contamination(
    dataset_fingerprint="f",
    unit="words",
    ngram=13,
    num_ngrams=200,
    num_found=1,
    num_items=5,
    num_items_searched=5,
)


@pytest.mark.parametrize(
    ("leak", "shown", "note"),
    [
        (None, "not known", None),
        (LEAK, "0.50% of 13-grams", ""),
        (LEAK.model_copy(update={"num_ngrams": 0, "num_found": 0}), "not searched: under 13 words", ""),
        (
            LEAK.model_copy(update={"num_items": 5, "num_items_searched": 2}),
            "0.50% of 13-grams",
            "3 of 5 items have no 13 words of their own: whether they were trained on is not known",
        ),
    ],
)
def test_what_was_not_searched_is_no_share_of_zero(leak, shown, note):
    assert contamination_text(leak) == shown
    if leak is not None:
        assert not_searched_text(leak) == note


def test_the_loss_per_row_and_the_loss_per_token_have_two_names(capsys):
    result = BenchmarkResult(
        run_id="r", candidate="c", step=5, weights_digest="w", benchmark="m", benchmark_sha256="b",
        grader_sha256="g", prompt_sha256="p", num_items=1, num_failed=0, score=Estimate(value=0.4819),
        unit="nats a token", higher_is_better=False, could_detect=None, device_s=0, evaluated_s=0,
        items_sha256="i",
    )  # fmt: skip
    matrix = matrix_of([(result.version_sha256(), score_row(result.to_json(), source=""))])
    print_document(history_document(matrix, device_s=0.0))
    print_document(results_document([result]))
    assert capsys.readouterr().out.count("loss per token") == 2
    assert NATS_PER_TOKEN.title == "loss per row" and NATS_PER_TOKEN.unit == result.unit
