"""What a gain will be at a larger scale: the bound holds, and what the scales do not support is refused."""

import numpy as np
import pytest

from assay.base.errors import DataError
from assay.statistics.scaling.gain import GainsAtScale, forecast_gain

SCALES = np.geomspace(1e7, 1e9, 7)


def rungs(rng, *, slope, at_largest=0.03, sd=0.004, scales=SCALES, num_seeds=3):
    """A ladder whose gain changes by `slope` per e-fold."""
    return [
        GainsAtScale(
            f"c{index}",
            float(scale),
            (at_largest + slope * np.log(scale / SCALES[-1]) + sd * rng.normal(size=num_seeds)).tolist(),
        )
        for index, scale in enumerate(scales)
    ]


def test_the_80_percent_bound_lies_below_what_came_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    below = []
    for world in range(300):
        slope = (-0.004, 0.0, 0.003)[world % 3]
        found = forecast_gain(rungs(rng, slope=slope), scale_name="tokens", target=5e9)
        came = 0.03 + slope * np.log(5e9 / SCALES[-1]) + 0.004 * rng.normal()
        below.append(found.gain.low <= came)
    assert 0.75 <= np.mean(below) <= 0.95


def test_a_gain_that_shrinks_with_scale_is_forecast_to_be_gone():
    shrinking = forecast_gain(rungs(np.random.default_rng(1), slope=-0.01), scale_name="tokens", target=2e10)
    assert shrinking.gain.value == pytest.approx(0.03 - 0.01 * np.log(20), abs=0.008)
    assert shrinking.gain.low < 0.015, "though every campaign gained more than that"


def test_a_line_that_bends_widens_its_own_band():
    rng = np.random.default_rng(2)
    straight = rungs(rng, slope=0.0, sd=0.001)
    bent = [
        GainsAtScale(rung.source, rung.scale, [gain - 0.001 * np.log(rung.scale / 1e7) ** 2 for gain in rung.gains])
        for rung in straight
    ]
    widths = [
        (found := forecast_gain(ladder, scale_name="tokens", target=5e9)).gain.high - found.gain.low
        for ladder in (straight, bent)
    ]
    assert widths[1] > 3 * widths[0]


@pytest.mark.parametrize(
    ("num_scales", "target", "words"),
    [(4, 2e9, "4 scales are too few"), (7, 1e15, "times the largest campaign; its history supports")],
)
def test_what_the_scales_do_not_support_is_refused(num_scales, target, words):
    ladder = rungs(np.random.default_rng(3), slope=0.0, scales=SCALES[-num_scales:])
    with pytest.raises(DataError, match=words):
        forecast_gain(ladder, scale_name="tokens", target=target)
