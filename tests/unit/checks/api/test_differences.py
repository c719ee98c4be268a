"""What counts as a difference between two loops."""

import math
from collections.abc import Mapping
from typing import Any

from assay.checks.api.differences import UndisturbedLoop

LOSS, TOOK = "metrics of step 1, loss", "metrics of step 1, seconds"


def difference(first: UndisturbedLoop, seen: Mapping[str, Any]) -> str:
    return first.difference(seen, lambda: first.seen)


def test_logprobs_are_compared_together_and_metrics_one_by_one() -> None:
    first = {"metrics of step 1": {"loss": 2.0, "seconds": 4.0}, "logprobs": [[1.0, 2.0]], "samples": [[1, 2], []]}
    second = {"metrics of step 1": {"loss": 2.0, "seconds": 8.0}, "logprobs": [[1.5, 4.0]], "samples": [[1, 2]]}
    assert UndisturbedLoop(first).differences(second) == {LOSS: 0.0, TOOK: 0.5, "logprobs": 0.5, "samples": math.inf}
    assert UndisturbedLoop({"loss": math.nan}).differences({"loss": math.nan}) == {"loss": 0.0}
    assert UndisturbedLoop({"loss": math.nan}).differences({"loss": 1.0}) == {"loss": math.inf}
    assert UndisturbedLoop({"loss": 1.0}).differences({}) == {"loss": math.inf}


def test_samples_that_differ_undisturbed_are_named_and_metrics_are_not() -> None:
    loop = UndisturbedLoop({"metrics of step 1": {"seconds": 4.0}, "samples": [1, 2]})
    assert loop.compare({"metrics of step 1": {}, "samples": [1, 2]}) == ""
    assert loop.compare({"metrics of step 1": {}, "samples": [1]}) == "samples: [1] instead of [1, 2]"


def test_a_metric_that_differs_undisturbed_hides_no_other() -> None:
    loop = UndisturbedLoop({"metrics of step 1": {"seconds": 4.0, "loss": 2.0}})
    loop.compare({"metrics of step 1": {"seconds": 4.1, "loss": 2.0}})
    assert difference(loop, {"metrics of step 1": {"seconds": 90.0, "loss": 2.0}}) == ""
    other = {"metrics of step 1": {"seconds": 90.0, "loss": 2.1}}
    assert difference(loop, other) == f"{LOSS}: 2.1 instead of 2.0"
    assert loop.varying_metrics() == ["seconds"]


def test_logprobs_count_from_ten_times_their_noise_and_are_named_before_metrics() -> None:
    loop = UndisturbedLoop({"metrics of step 1": {"loss": 2.0}, "logprobs at the end": [[1.0]]})
    loop.compare({"metrics of step 1": {"loss": 2.0}, "logprobs at the end": [[1.01]]})
    assert round(loop.noise(), 6) == round(0.01 / 1.01, 6)
    changed = {"metrics of step 1": {"loss": 2.1}}
    assert difference(loop, {**changed, "logprobs at the end": [[1.2]]}).startswith("logprobs at the end")
    assert difference(loop, {**changed, "logprobs at the end": [[1.05]]}) == f"{LOSS}: 2.1 instead of 2.0"


def test_numbers_that_were_summed_in_another_order_are_the_same() -> None:
    """The first pair is of a server that puts a repeated request into one batch with the first."""
    loop = UndisturbedLoop({"logprobs at the end": [[-5.546009540557861]], "samples": [[7, 9]]})
    assert difference(loop, {**loop.seen, "logprobs at the end": [[-5.5460100173950195]]}) == ""
    assert difference(loop, {**loop.seen, "logprobs at the end": [[-5.5466]]}) != ""
    assert difference(loop, {**loop.seen, "samples": [[7, 8]]}) != ""


def test_only_a_difference_of_metrics_alone_is_compared_with_further_loops() -> None:
    loop, calls = UndisturbedLoop({"metrics of step 1": {"seconds": 4.0}, "logprobs at the end": [[1.0]]}), []

    def play() -> dict[str, Any]:
        calls.append(0)
        return {"metrics of step 1": {"seconds": 4.0 + (len(calls) == 3)}, "logprobs at the end": [[1.0]]}

    assert loop.difference({**loop.seen, "logprobs at the end": [[2.0]]}, play)
    assert not calls
    assert loop.difference({**loop.seen, "metrics of step 1": {"seconds": 9.0}}, play) == ""
    assert len(calls) == 3
