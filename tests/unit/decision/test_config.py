"""What is said of a campaign's file that cannot be."""

from pathlib import Path
from typing import Any

import pytest
import yaml

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
