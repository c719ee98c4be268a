"""The page of a law says first what it predicts, or why it does not."""

import numpy as np
import pytest

from assay.records.scaling import BandCheck
from assay.reporting.charts.scaling_plots import exponent_text
from assay.reporting.documents.render import render_document
from assay.reporting.documents.scaling import scaling_document, scaling_verdict
from assay.statistics.scaling.forms import FORMS
from assay.statistics.scaling.points import scaling_points
from assay.statistics.scaling.study import study

TOKENS = np.geomspace(1e6, 1e9, 16)


def a_study(*targets: float, num_points: int = 16):
    noise = np.random.default_rng(0).normal(0, 0.005, 16)
    points = scaling_points((0.5 + 30 * TOKENS**-0.2) * np.exp(noise), tokens=TOKENS)
    requested = [{"tokens": target} for target in targets]
    return study(points.where(np.arange(num_points)), FORMS["tokens"], targets=requested, num_resamples=100)


@pytest.mark.parametrize(
    ("targets", "num_points", "word", "text"),
    [
        ((3e9,), 16, "within reach", "At tokens 3.0 G the loss will be"),
        ((3e9, 1e20), 16, "untested", "such bands were tested up to"),
        ((3e9, 1e3), 16, "refused", "below the smallest run"),
        ((3e9,), 7, "fitted, not tested", "too few to test an extrapolation"),
        ((), 16, "fitted", "on 16 runs"),
    ],
)
def test_the_verdict_is_what_may_be_said(targets, num_points, word, text):
    found = a_study(*targets, num_points=num_points)
    assert scaling_verdict(found).word == word
    page = render_document(scaling_document(found, None, name="runs.csv", created_s=0.0))
    assert text in page
    assert "<script" not in page


def test_the_share_of_forgotten_runs_that_bands_held_is_on_the_page():
    check = BandCheck(
        confidence=0.9,
        num_predictions=50,
        covered=0.88,
        covered_uncalibrated=0.6,
        covered_by_bootstrap_alone=0.2,
    )
    page = render_document(scaling_document(a_study(), check, name="runs.csv", created_s=0.0))
    assert "88.0%" in page
    assert "bootstrap alone 20.0%" in page


def test_powers_of_ten_are_written_as_such():
    assert exponent_text(21.0) == "10²¹"
    assert exponent_text(21.5) == "3.2·10²¹"
    assert exponent_text(-3.0) == "10⁻³"
