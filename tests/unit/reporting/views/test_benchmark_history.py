"""Scores over checkpoints: their order, versions, and the best so far."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from assay.records.benchmark import BenchmarkResult
from assay.records.evaluation import Estimate
from assay.reporting.views.benchmark_history import HistoryLine, history_lines, matrix_of, score_row


def result(step: int, value: float, *, better: bool = True, version: str = "b") -> BenchmarkResult:
    return BenchmarkResult(
        run_id="r", candidate="c", step=step, weights_digest="w", benchmark="m", benchmark_sha256=version,
        grader_sha256="g", prompt_sha256="p", num_items=1, num_failed=0, score=Estimate(value=value),
        higher_is_better=better, could_detect=None, device_s=0, evaluated_s=0, items_sha256="i",
    )  # fmt: skip


def history(results: list[BenchmarkResult]) -> list[HistoryLine]:
    rows = [(result.version_sha256(), score_row(result.to_json(), source="")) for result in results]
    return history_lines(matrix_of(rows), results)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.booleans())
def test_the_frontier_is_the_best_up_to_each_step_whatever_the_order(values, better):
    results = [result(10 * k, value, better=better) for k, value in enumerate(values)]
    random.Random(0).shuffle(results)
    lines = history(results)
    choose = max if better else min
    assert [line.step for line in lines] == [10 * k for k in range(len(values))]
    assert [line.best_value for line in lines] == [choose(values[: k + 1]) for k in range(len(values))]
    best = [line for line in lines if line.is_best_so_far][-1]
    assert best.score.value == choose(values)


def test_another_version_of_a_benchmark_is_another_history():
    lines = history([result(1, 0.9), result(2, 0.5, version="new")])
    assert [line.is_best_so_far for line in lines] == [True, True]


def test_several_runs_are_ordered_by_the_time_of_evaluation():
    late = result(1, 0.5).model_copy(update={"run_id": "a", "evaluated_s": 9.0})
    early = result(8, 0.4).model_copy(update={"run_id": "b", "evaluated_s": 1.0})
    assert [line.run_id for line in history([late, early])] == ["b", "a"]
