"""Reads the rule of a gate from a campaign's own file.

Programs count in points and runs. If a campaign uses another unit, another benchmark or other numbers of
runs, it cannot be simulated; the error names the location in the campaign's file.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.base.config import read_config_file, validated
from assay.base.errors import ConfigError
from assay.base.names import meant
from assay.planning.program.checks import ProgramProblem

if TYPE_CHECKING:
    from assay.decision.config import CampaignConfig

POINTS = 100.0
"""A share of 1 is 100 points."""

_SHARED_KEYS = (
    "confidence", "probability", "stop_probability", "least_predictive_power", "unscheduled_share",
    "over_seeds",
)  # fmt: skip
"""Keys with the same meaning in both files."""

_SHARES = ("correct", "ranking")
"""Prediction scores that are shares for any method: accuracy and AUC."""


def with_campaigns(values: dict[str, Any], folder: Path) -> Iterator[ProgramProblem]:
    """Replace the path of a campaign's file in each gate of the program's tree by that campaign's rule; yield
    the problems."""
    gates = values.get("gates")
    for name, gate in gates.items() if isinstance(gates, dict) else ():
        evidence = gate.get("evidence") if isinstance(gate, dict) else None
        if isinstance(evidence, dict) and isinstance(evidence.get("rule"), str):
            key, path = f"gates.{name}.evidence.rule", folder / evidence["rule"]
            evidence["rule"] = {"least_effect": 1.0}  # so that the rest of the file can be read
            try:
                config = _campaign(path)
            except ConfigError as error:
                yield ProgramProblem(key, str(error))
                continue
            unfit = dict(_unfit(config, values.get("benchmarks")))
            yield from (ProgramProblem(key, f"{path}: {reason}") for reason in unfit.values())
            evidence["rule"] = _rule(config, leave_out=unfit) | {"arms": _arms(config, _count(values, evidence))}
            yield from _other_seeds(config, path, evidence, _count(values, evidence))


def _rule(config: "CampaignConfig", *, leave_out: Mapping[str, str]) -> dict[str, Any]:
    rule = config.rule
    return {
        "least_effect": rule.least_effect * POINTS,
        "prior_sd": None if rule.prior_sd is None else rule.prior_sd * POINTS,
        "looks": list(config.all_looks),
        "candidates": len(config.candidates),
        "guardrails": [
            {"benchmark": guardrail.benchmark, "margin": guardrail.margin * POINTS}
            for guardrail in rule.guardrails
            if guardrail.benchmark not in leave_out
        ],
        "safety": [
            {"benchmark": limit.benchmark, "max_rate": limit.max_rate}
            for limit in rule.safety
            if limit.benchmark not in leave_out
        ],
        **{key: getattr(rule, key) for key in _SHARED_KEYS},
    }


def _campaign(path: Path) -> "CampaignConfig":
    from assay.decision.config import (
        CampaignConfig,  # a second to import, and most programs name none
    )

    return validated(CampaignConfig, read_config_file(path, ()))


def _unfit(config: "CampaignConfig", known: Any) -> Iterator[tuple[str, str]]:
    """Yield (benchmark, why the campaign's rule cannot be simulated)."""
    scores = {benchmark.name: benchmark.score for benchmark in config.benchmarks if benchmark.type == "predictions"}

    def unit_text(name: str) -> str | None:
        score = scores.get(name, _SHARES[0])
        unit = "is in nats" if score == "log_likelihood" else "need not be a share"
        text = f"'{name}' has score: {score}, which {unit}, and a program plays shares, in points"
        return None if score in _SHARES else text

    for index, name in enumerate(config.rule.primary):
        if (text := unit_text(name)) is not None:
            yield name, f"rule.primary.{index}: {text}. Give the gate 'probabilities' instead of evidence."
    for index, guardrail in enumerate(config.rule.guardrails):
        name, key = guardrail.benchmark, f"rule.guardrails.{index}.benchmark"
        if (text := unit_text(name)) is not None:
            hint = "write the rule itself here, as a section, without this guardrail"
            yield name, f"{key}: {text}. Let the campaign watch it by score: correct, or {hint}."
        elif isinstance(known, dict) and name not in known:
            its = f"{{role: guardrail, items: ..., margin: {guardrail.margin * POINTS:g}}}"
            yield name, _unknown(key, name, known, its)
    for index, mode in enumerate(config.rule.safety):
        if isinstance(known, dict) and (name := mode.benchmark) not in known:
            its = "{role: safety, items: ..., failure_rate: ...}"
            yield name, _unknown(f"rule.safety.{index}.benchmark", name, known, its)


def _unknown(key: str, name: str, known: Mapping[str, Any], its: str) -> str:
    hint = f"Add it to 'benchmarks' here, as '{name}: {its}'."
    return f"{key}: '{name}' is no benchmark of this program{meant(name, known)}. {hint}"


def _count(values: Mapping[str, Any], evidence: Mapping[str, Any]) -> int | None:
    """Return the runs of the activity that the gate reads; None if the file does not state a number."""
    found: Any = values
    for part in ("activities", evidence.get("runs"), "runs"):
        found = found.get(part) if isinstance(found, dict) and isinstance(part, str) else None
    count = found.get("count", 1) if isinstance(found, dict) else None
    return count if isinstance(count, int) else None


def _arms(config: "CampaignConfig", count: int | None) -> int:
    """Return the campaign's arms, or two if the activity covers a single candidate's comparison."""
    return 2 if count == 2 * config.seeds else len(config.arm_names)


def _other_seeds(
    config: "CampaignConfig", path: Path, evidence: Mapping[str, Any], count: int | None
) -> Iterator[ProgramProblem]:
    """Yield a problem if the runs are whole seeds of all arms, but not the campaign's number of seeds."""
    arms = evidence["rule"]["arms"]
    if count is None or count % arms or count < arms * config.all_looks[0] or count == arms * config.seeds:
        return  # the first two are mistakes of any gate's runs
    yield ProgramProblem(
        f"activities.{evidence['runs']}.runs.count",
        f"{count} runs are {count // arms} seeds of {arms} arms ({', '.join(config.arm_names)}), and {path} "
        f"has seeds: {config.seeds}. Write count: {arms * config.seeds}, or seeds: {count // arms} there.",
    )
