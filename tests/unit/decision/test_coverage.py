"""What would go unnoticed."""

import pytest

from assay.base.config import LoadedConfig, validated
from assay.base.errors import ConfigError
from assay.decision.coverage import CoverageConfig, coverage
from assay.evals.config import Suite
from assay.evals.version import PresentSuite
from assay.records.benchmark import BenchmarkResult, DetectableEffect
from assay.records.evaluation import Estimate
from assay.reporting.views.statements import hole_text


def config(*modes: str, power: float = 0.8) -> CoverageConfig:
    tree = [{"name": mode, "owner": "policy", "least_effect": 0.02} for mode in modes]
    return validated(CoverageConfig, LoadedConfig({"failure_modes": tree, "power": power}, {}))


def suite(**modes: list[str]) -> PresentSuite:
    benchmarks = [
        {"type": "multiple_choice", "name": name, "items": "x", "failure_modes": found} for name, found in modes.items()
    ]
    read = validated(Suite, LoadedConfig({"name": "safety", "benchmarks": benchmarks}, {}))
    now = {"benchmark_sha256": "b", "grader_sha256": "g", "prompt_sha256": "p"}
    return PresentSuite(read, dict.fromkeys(modes, now))


def result(benchmark: str, effect: float | None, *, at_s: float = 0.0) -> BenchmarkResult:
    return BenchmarkResult(
        run_id="r", candidate="c", step=1, weights_digest="w", benchmark=benchmark, benchmark_sha256="b",
        grader_sha256="g", prompt_sha256="p", num_items=500, num_failed=0, score=Estimate(value=0.5),
        could_detect=None if effect is None else DetectableEffect(effect=effect), device_s=0, evaluated_s=at_s,
        items_sha256="i",
    )  # fmt: skip


def test_a_benchmark_of_enough_power_covers():
    found = coverage(config("jailbreak"), [suite(red=["jailbreak"])], [result("red", 0.019)])
    assert not found.holes
    assert found.modes[0].cells[0].state == "covered"


def test_a_benchmark_that_is_too_small_covers_nothing_and_says_how_many_items_it_needs():
    found = coverage(config("jailbreak"), [suite(red=["jailbreak"])], [result("red", 0.04)])
    (hole,) = found.holes
    assert hole.cells[0].items_needed == 2000
    assert hole_text(hole) == "'red' finds 0.04 at best, 0.02 matters: it needs some 2,000 items, it has 500"


def test_a_benchmark_that_was_never_run_or_has_no_interval_covers_nothing():
    for results in ([], [result("red", None)]):
        (hole,) = coverage(config("jailbreak"), [suite(red=["jailbreak"])], results).holes
        assert "never run" in hole_text(hole)


def test_a_mode_that_no_benchmark_names_is_a_hole_with_an_owner():
    found = coverage(config("jailbreak", "agentic"), [suite(red=["jailbreak"])], [result("red", 0.01)])
    assert [hole.name for hole in found.holes] == ["agentic"]
    assert hole_text(found.holes[0]) == "no benchmark looks for it; policy owns it"


def test_the_newest_result_of_a_benchmark_counts():
    results = [result("red", 0.04, at_s=2.0), result("red", 0.01, at_s=1.0)]
    assert coverage(config("jailbreak"), [suite(red=["jailbreak"])], results).holes


@pytest.mark.parametrize("part", ["benchmark_sha256", "grader_sha256", "prompt_sha256"])
def test_a_result_of_another_version_of_a_benchmark_covers_nothing_however_new(part):
    old = result("red", 0.01, at_s=2.0).model_copy(update={part: "of then"})
    (hole,) = coverage(config("jailbreak"), [suite(red=["jailbreak"])], [old]).holes
    assert hole.cells[0].state == "another version"
    assert "'red' was run only with other items, prompts or grader than it has now" in hole_text(hole)
    results = [old, result("red", 0.01, at_s=1.0)]
    assert not coverage(config("jailbreak"), [suite(red=["jailbreak"])], results).holes


def test_more_power_asks_for_more():
    results = [result("red", 0.0199)]
    assert coverage(config("jailbreak", power=0.9), [suite(red=["jailbreak"])], results).holes


def test_a_failure_mode_that_nobody_owns_is_refused():
    with pytest.raises(ConfigError, match="failure mode 'jailbrek' is not in the coverage file"):
        coverage(config("jailbreak"), [suite(red=["jailbrek"])], [])


def test_a_mode_listed_twice_is_refused():
    with pytest.raises(ConfigError, match="listed twice"):
        config("a", "a")
