"""Benchmark results on a terminal."""

import pytest

from assay.cli.screens.benchmarks import contamination_text, not_searched_text
from assay.records.benchmark import Contamination

LEAK = Contamination(dataset_fingerprint="f", unit="words", ngram=13, num_ngrams=200, num_found=1)


@pytest.mark.parametrize(
    ("leak", "shown", "note"),
    [
        (None, "not known", None),
        (LEAK, "0.50% of 13-grams", ""),  # of an assay that counted no items
        (LEAK.model_copy(update={"num_ngrams": 0, "num_found": 0}), "not searched: under 13 words", ""),
        (LEAK.model_copy(update={"num_items": 5, "num_items_searched": 5}), "0.50% of 13-grams", ""),
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
