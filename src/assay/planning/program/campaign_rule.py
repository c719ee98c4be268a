"""The rule of a declared campaign, as a gate of a program is played by it: from the campaign's own file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assay.base.config import read_config_file, validated
from assay.base.errors import ConfigError
from assay.planning.program.checks import ProgramMistake

POINTS = 100.0
"""A share of 1 is 100 points."""

_KEPT = (
    "confidence", "probability", "stop_probability", "least_chance", "unscheduled_share", "over_seeds",
)  # fmt: skip
"""Keys that mean the same in both."""


def with_campaigns(values: dict[str, Any], folder: Path) -> Iterator[ProgramMistake]:
    """Put a campaign's rule where a gate of the program's tree names its file, relative to `folder`."""
    gates = values.get("gates")
    for name, gate in gates.items() if isinstance(gates, dict) else ():
        evidence = gate.get("evidence") if isinstance(gate, dict) else None
        if isinstance(evidence, dict) and isinstance(evidence.get("rule"), str):
            try:
                evidence["rule"] = _rule(folder / evidence["rule"])
            except ConfigError as error:
                evidence["rule"] = {"least_effect": 1.0}  # so that the rest of the file can be read
                yield ProgramMistake(f"gates.{name}.evidence.rule", str(error))


def _rule(path: Path) -> dict[str, Any]:
    from assay.evaluation.decision.config import (
        CampaignConfig,  # a second to import, and most programs name none
    )

    config = validated(CampaignConfig, read_config_file(path, ()))
    rule = config.rule
    return {
        "least_effect": rule.least_effect * POINTS,
        "prior_sd": None if rule.prior_sd is None else rule.prior_sd * POINTS,
        "looks": list(config.all_looks),
        "candidates": len(config.candidates),
        "guardrails": [
            {"benchmark": each.benchmark, "margin": each.margin * POINTS} for each in rule.guardrails
        ],
        **{key: getattr(rule, key) for key in _KEPT},
    }
