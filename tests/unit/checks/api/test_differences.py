"""What counts as a difference between two loops."""

import math

from assay.checks.api.judge import describe_difference, differences

LOSS, TOOK = "metrics of step 1, loss", "metrics of step 1, seconds"


def test_logprobs_are_compared_together_and_metrics_one_by_one() -> None:
    first = {"metrics of step 1": {"loss": 2.0, "seconds": 4.0}, "logprobs": [[1.0, 2.0]], "samples": [[1, 2], []]}
    second = {"metrics of step 1": {"loss": 2.0, "seconds": 8.0}, "logprobs": [[1.5, 4.0]], "samples": [[1, 2]]}
    assert differences(first, second) == {LOSS: 0.0, TOOK: 0.5, "logprobs": 0.5, "samples": math.inf}
    assert differences({"loss": math.nan}, {"loss": math.nan}) == {"loss": 0.0}
    assert differences({"loss": math.nan}, {"loss": 1.0}) == {"loss": math.inf}
    assert differences({"loss": 1.0}, {}) == {"loss": math.inf}


def test_a_number_that_differs_undisturbed_hides_no_other() -> None:
    expected = {"metrics of step 1": {"seconds": 4.0, "loss": 2.0}}
    noise = {TOOK: 0.5}
    later = {"metrics of step 1": {"seconds": 9.0, "loss": 2.0}}
    assert describe_difference(expected, later, noise) == ""
    other = {"metrics of step 1": {"seconds": 9.0, "loss": 2.1}}
    assert describe_difference(expected, other, noise) == f"{LOSS}: 2.1 instead of 2.0"
