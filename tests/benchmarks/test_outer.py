"""The simulated clusters of the study of outer steps."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from outer import PUBLISHED, Setting, compared, corpus, rows_of, train

SHORT = Setting(steps=8)


@pytest.mark.slow
def test_one_cluster_that_averages_with_itself_trains_like_no_outer_steps() -> None:
    alone, averaged = train(SHORT, 0), train(replace(SHORT, every=2, bits=32), 0)
    assert averaged["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    assert train(replace(PUBLISHED, clusters=1, steps=8, every=2, bits=32), 0)["loss"] != pytest.approx(
        alone["loss"], rel=1e-3
    )


def test_a_lane_reads_its_own_rows_and_no_held_out_file() -> None:
    text, held_out = corpus()
    rows = [rows_of(text, (seed, lane, step), 4) for seed in (0, 1) for lane in (0, 1) for step in (1, 2)]
    assert len({row.tobytes() for row in rows}) == 8
    assert text.tobytes().find(held_out[0].tobytes()) == -1


def test_differences_are_paired_over_the_seeds() -> None:
    reference, own = [2.0, 3.0, 2.5], [2.1, 3.12, 2.66]
    row = compared(*([{"loss": loss, "bytes": 7} for loss in losses] for losses in (own, reference)))
    interval = stats.ttest_1samp(np.divide(own, reference) - 1, 0).confidence_interval()
    assert (row.difference - row.half_width, row.difference + row.half_width) == pytest.approx(tuple(interval))
