"""The words of quantities."""

import math

import pytest

from assay.records.evaluation import Estimate
from assay.reporting.views.statements import (
    chance_text,
    device_time_text,
    effect_text,
    interval_words,
    side_text,
)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123, "share", "+1.23 points"),
        (-0.0123, "AUC", "-1.23 points of AUC"),
        (-0.00001, "share", "0.00 points"),
        (0.05616, "nats per row", "+0.0562 nats per row"),
    ],
)
def test_an_effect_is_in_points_or_its_own_unit_and_zero_has_no_sign(value, unit, text):
    assert effect_text(value, unit) == text


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        (-0.0061, "0.61 points better"),
        (0.012, "1.20 points worse"),
        (0.00001, "as good"),
        (math.inf, "unknown"),
    ],
)
def test_a_harm_is_said_as_better_or_worse_and_never_as_a_negative_harm(harm: float, text: str) -> None:
    assert side_text(harm, "share") == text


def test_an_interval_is_in_the_unit_of_its_effect():
    found = Estimate(value=0.01, low=-0.002, high=0.022)
    assert interval_words(found, "share") == "+1.00 points [95%: -0.20 to +2.20]"
    wide = found.model_copy(update={"confidence": 0.9})
    assert interval_words(wide, "share") == "+1.00 points [90%: -0.20 to +2.20]"
    assert interval_words(Estimate(value=0.01), "share") == "+1.00 points (no interval)"


@pytest.mark.parametrize(
    ("probability", "text"),
    [(0.0, "under 1%"), (0.004, "under 1%"), (0.5, "50%"), (0.997, "over 99%"), (1.0, "over 99%")],
)
def test_a_chance_is_never_rounded_to_certainty(probability, text):
    assert chance_text(probability) == text


def test_device_time_is_hours_or_a_duration():
    assert device_time_text(7200) == "2 device-hours"
    assert device_time_text(3600) == "1 device-hour"
    assert device_time_text(75) == "1 min 15 s of device time"
