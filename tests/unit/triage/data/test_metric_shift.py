"""What a metric did between runs on two versions of the data: intervals, the slice that moved, the price."""

import math

import numpy as np
import pytest

from assay.records.evaluation import Estimate, Measured, Metric, ScoreEvaluation, ScoreMetrics, ScoreSlice
from assay.triage.data.metric_shift import moved_metric

REWARD = Metric(name="reward", unit="points", higher_is_better=True)
Z = 1.959963984540054


def scored(value: float, error: float | None, number: int = 100) -> ScoreMetrics:
    margin = None if error is None else Z * error
    estimate = Estimate(
        value=value,
        low=None if margin is None else value - margin,
        high=None if margin is None else value + margin,
    )
    return ScoreMetrics(num_rows=number, measured=(Measured(metric=REWARD, estimate=estimate),))


def evaluation(overall: ScoreMetrics, slices: dict[str, ScoreMetrics], run_id: str = "r") -> ScoreEvaluation:
    return ScoreEvaluation(
        run_id=run_id, step=1, weights_digest="w", dataset_fingerprint="d", split="validation",
        predictions_sha256="p", overall=overall,
        slices=tuple(
            ScoreSlice(column="language", value=name, metrics=metrics) for name, metrics in slices.items()
        ),
    )  # fmt: skip


def test_the_interval_of_a_difference_of_two_normal_means_is_the_closed_form() -> None:
    found = moved_metric(evaluation(scored(1.0, 0.3), {}), evaluation(scored(2.0, 0.4), {}), dataset="d", held_s=0.0)
    assert found is not None
    assert (found.overall.low, found.overall.high) == pytest.approx((1.0 - Z * 0.5, 1.0 + Z * 0.5))
    assert (found.slices, found.num_slices, found.device_hours) == ((), 0, None)


def test_the_slice_that_moved_is_named_and_the_run_that_would_tell_has_its_price() -> None:
    before = {name: scored(1.0, 0.05) for name in "abcdef"}
    after = {**before, "c": scored(0.2, 0.05), "e": scored(0.6, 0.05), "new": scored(9.0, 0.1)}
    old, new = evaluation(scored(1.0, 0.02), before), evaluation(scored(0.8, 0.02), after, "after")
    found = moved_metric(old, new, dataset="datasets/march", held_s=5_400.0)
    assert found is not None
    assert [slice_part.value for slice_part in found.slices] == ["c", "e"]
    assert found.num_slices == 6, "the new one has nothing to stand beside"
    assert found.slices[0].high < 0.0
    assert (found.run_id, found.dataset, found.device_hours) == ("after", "datasets/march", 1.5)


def test_where_nothing_moved_a_slice_is_named_in_at_most_five_percent() -> None:
    rng, named = np.random.default_rng(0), 0
    for _ in range(1_000):
        sides = [{str(k): scored(float(rng.normal(0.0, 0.1)), 0.1) for k in range(12)} for _ in range(2)]
        found = moved_metric(*(evaluation(scored(0.0, 1.0), side) for side in sides), dataset="d", held_s=0.0)
        assert found is not None
        named += bool(found.slices)
    assert named <= 1_000 * 0.05 + 3 * math.sqrt(1_000 * 0.05 * 0.95)


def test_a_metric_without_an_interval_says_nothing() -> None:
    whole, one_row = evaluation(scored(1.0, 0.1), {}), evaluation(scored(1.0, None), {})
    assert moved_metric(whole, one_row, dataset="d", held_s=0.0) is None
    assert moved_metric(one_row, whole, dataset="d", held_s=0.0) is None
