"""What is said of a campaign's file that cannot be."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from assay.base.config import read_config_file, validated
from assay.base.errors import ConfigError
from assay.decision.config import CampaignConfig


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"rule": {"primary": ["prose", "cod"]}}, "rule.primary.1"),
        (
            {"rule": {"guardrails": [{"benchmark": "cod", "margin": 0.1}]}},
            "rule.guardrails.0.benchmark",
        ),
        (
            {
                "gates": [
                    {
                        "name": "g",
                        "then": "stop",
                        "conditions": [{"type": "harm", "benchmark": "cod", "margin": 0.1}],
                    }
                ]
            },
            "gates.0.conditions.0.benchmark",
        ),
    ],
)
def test_a_benchmark_that_is_not_listed_is_told_by_key_and_line_with_what_was_meant(
    config_of, tmp_path: Path, changes: dict[str, Any], key: str
) -> None:
    file = tmp_path / "campaign.yaml"
    tree = {**config_of().model_dump(mode="json", exclude_unset=True), **changes}
    tree["rule"] = {"primary": ["prose"], "least_effect": 0.015, **changes.get("rule", {})}
    file.write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigError) as raised:
        validated(CampaignConfig, read_config_file(file, ()))
    line = next(number for number, text in enumerate(file.read_text().splitlines(), 1) if text.endswith(" cod"))
    message = str(raised.value)
    assert f"{key} ({file}:{line}): benchmark 'cod' is named by" in message
    assert message.endswith("; perhaps you meant 'code'.")


RUNS = [f"run-{number}" for number in range(5)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": None}, "one of recipe, command and runs, not none of them"),
        ({"command": "python train.py {seed}"}, "one of recipe, command and runs, not recipe and command"),
        ({"recipe": None, "runs": RUNS}, "a patch changes a recipe, and the campaign has none"),
        ({"candidates": [{"name": "a", "patch": {"b": 1}, "runs": RUNS}]}, "candidate 'a' has patch and runs"),
        ({"candidates": [{"name": "a"}]}, "candidate 'a' has no patch"),
        ({"candidates": [{"name": "a", "command": "python train.py"}]}, "without {seed} in it"),
        ({"candidates": [{"name": "a", "runs": RUNS[:2]}]}, "names 2 runs for 5 seeds; give one for each"),
        ({"candidates": [{"name": "a", "runs": [*RUNS[:4], RUNS[0]]}]}, "run 'run-0' has two parts"),
        ({"candidates": [{"name": name, "runs": RUNS} for name in "ab"]}, "run 'run-0' has two parts"),
        ({"candidates": [{"name": "a", "runs": RUNS}]}, "only a suite can judge it"),
        (
            {
                "candidates": [{"name": "a", "runs": RUNS}],
                "benchmarks": [{"type": "predictions", "name": "prose"}],
                "rule": {"primary": ["prose"], "least_effect": 0.1},
            },
            "arm 'a' has no recipe, so only a suite can judge it",
        ),
    ],
)
def test_an_arm_has_one_source_and_a_benchmark_for_it(config_of, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        config_of(**changes)
    assert message in str(raised.value)


def test_runs_are_those_of_the_seeds_in_their_order(config_of) -> None:
    benchmarks = [{"type": "suite", "name": name, "suite": "s.yaml"} for name in ("code", "prose")]
    config = config_of(
        recipe=None,
        command="python train.py --seed {seed}",
        candidates=[{"name": "a", "runs": RUNS}],
        benchmarks=benchmarks,
        first_seed=3,
    )
    assert [config.run_id("a", seed) for seed in config.seed_numbers] == RUNS
    assert config.run_id("baseline", 3) == "pilot-baseline-s3"
    assert not config.has_recipe("baseline") and config.candidate("a").change == {"runs": RUNS}
