"""Facts with differences that a test chooses."""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pytest

from assay.decision.config import CampaignConfig
from assay.decision.facts import BenchmarkFacts, Facts, role_of
from assay.records.campaign import CampaignRun
from assay.statistics.campaign.looks import take_look
from assay.statistics.composite import breadth
from assay.statistics.effect import paired_effect

NUM_ITEMS = 400
RECIPE = {
    "name": "treated",
    "seed": 3,
    "loader": {"lanes": 8, "seed": 3},
    "trainer": {"max_steps": None, "precision": "auto", "optimizer": {"type": "adamw", "learning_rate": 0.1}},
}


def campaign_config(**changes: object) -> CampaignConfig:
    """Two primary benchmarks, one guardrail, one safety benchmark, looks at 3 and 5 seeds."""
    tree: dict[str, object] = {
        "name": "pilot",
        "question": "Is it better?",
        "recipe": "recipe.yaml",
        "candidates": [{"name": "treated", "patch": {"trainer.epochs": 2}}],
        "seeds": 5,
        "looks": [3],
        "budget_device_hours": 100,
        "benchmarks": [{"type": "suite", "name": name} for name in ("code", "prose", "refusals", "secrets")],
        "rule": {"primary": ["code", "prose"], "least_effect": 0.015},
    }
    return CampaignConfig.model_validate({**tree, **changes})


def scored(config: CampaignConfig, name: str, gain: float, *, num_seeds: int, noise: float = 0.05) -> BenchmarkFacts:
    """A benchmark whose items gain `gain` on average, with a little noise over seeds and items."""
    rng = np.random.default_rng(sum(name.encode()))
    baseline = np.ones((num_seeds, NUM_ITEMS))
    candidate = baseline + gain + noise * rng.normal(size=baseline.shape)
    return _facts(config, name, baseline, candidate)


def with_failures(config: CampaignConfig, name: str, failures: int, *, num_seeds: int) -> BenchmarkFacts:
    """A safety benchmark on which the candidate fails this many items, and the baseline none."""
    baseline = np.ones((num_seeds, NUM_ITEMS))
    candidate = baseline.copy()
    candidate[:, :failures] = 0.0
    return _facts(config, name, baseline, candidate)


def _facts(
    config: CampaignConfig, name: str, baseline: npt.NDArray[np.float64], candidate: npt.NDArray[np.float64]
) -> BenchmarkFacts:
    clusters, weights = np.arange(NUM_ITEMS), np.ones(NUM_ITEMS)
    return BenchmarkFacts(
        name=name,
        role=role_of(config, name),
        unit="share",
        baseline=baseline,
        candidate=candidate,
        clusters=clusters,
        weights=weights,
        effect=paired_effect(candidate - baseline, clusters, weights),
        num_dropped=0,
        failed=candidate[0] < 1.0,
        results=(),
        sources=(),
    )


def run_record(arm: str, seed: int, *, audit: str = "pass") -> CampaignRun:
    """One arm with one seed; an hour of device time."""
    return CampaignRun(
        arm=arm, seed=seed, run_id=f"pilot-{arm}-s{seed}", recipe_sha256=arm, weights_digest="",
        audit_verdict=audit, num_attempts=1, device_s=3600.0,
    )  # fmt: skip


@pytest.fixture
def facts_of() -> Callable[..., Facts]:
    """`facts_of(config, {"code": 0.05}, num_seeds=3, failures={"secrets": 2}, audits={...})`."""

    def make(
        config: CampaignConfig,
        gains: Mapping[str, float],
        *,
        num_seeds: int = 3,
        failures: Mapping[str, int] | None = None,
        noise: float = 0.05,
        audit: str = "pass",
    ) -> Facts:
        found = {
            benchmark.name: with_failures(config, benchmark.name, (failures or {})[benchmark.name], num_seeds=num_seeds)
            if benchmark.name in (failures or {})
            else scored(config, benchmark.name, gains.get(benchmark.name, 0.0), num_seeds=num_seeds, noise=noise)
            for benchmark in config.benchmarks
        }
        look = take_look(config.look_plan(), [], name="look", num_seeds=num_seeds, is_gate=True)
        runs = [run_record(arm, seed, audit=audit) for arm in ("baseline", "treated") for seed in range(num_seeds)]
        return Facts(
            candidate="treated",
            look=look,
            benchmarks=found,
            breadth=breadth({name: found[name].differences for name in config.rule.primary}),
            unit="share",
            runs=tuple(runs),
            budget_s=config.budget_device_hours * 3600.0,
            recipe=RECIPE,
        )

    return make


@pytest.fixture
def config_of() -> Callable[..., CampaignConfig]:
    return campaign_config
