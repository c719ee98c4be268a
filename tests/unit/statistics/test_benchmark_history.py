"""Scores over checkpoints."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from assay.records.benchmark import BenchmarkResult
from assay.records.evaluation import Estimate
from assay.statistics.benchmark_history import benchmark_histories


def result(step: int, value: float, *, better: bool = True, version: str = "b") -> BenchmarkResult:
    return BenchmarkResult(
        run_id="r", candidate="c", step=step, weights_digest="w", benchmark="m", benchmark_sha256=version,
        grader_sha256="g", prompt_sha256="p", num_items=1, num_failed=0, score=Estimate(value=value),
        higher_is_better=better, could_detect=None, device_s=0, evaluated_s=0, items_sha256="i",
    )  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.booleans())
def test_the_frontier_is_the_best_up_to_each_step_whatever_the_order(values, better):
    results = [result(10 * k, value, better=better) for k, value in enumerate(values)]
    random.Random(0).shuffle(results)
    (history,) = benchmark_histories(results)
    choose = max if better else min
    assert [point.best_value for point in history.points] == [choose(values[: k + 1]) for k in range(len(values))]
    best = [point for point in history.points if point.is_best_so_far][-1]
    assert best.result.score.value == choose(values)


def test_another_version_of_a_benchmark_is_another_history():
    histories = benchmark_histories([result(1, 0.5), result(2, 0.9, version="new")])
    assert [len(history.points) for history in histories] == [1, 1]
