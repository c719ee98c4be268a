"""What a decision is made from: results on disk, and which of their items are the same."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from assay.base.digest import sha256_of_bytes
from assay.evaluation.decision.config import CampaignConfig
from assay.evaluation.decision.facts import Facts, ScoredRun, benchmark_facts, gather_facts
from assay.evaluation.evidence.benchmark_items import (
    ItemScore,
    items_bytes,
    items_table,
    save_result,
    summarise,
)
from assay.evaluation.evidence.campaign.looks import take_look
from assay.records.benchmark import BenchmarkResult
from assay.records.campaign import CampaignRun

ROWS = np.random.default_rng(0).normal(size=80)


def scores_of(arm: str, seed: int) -> npt.NDArray[np.float64]:
    """The candidate differs from the baseline by the row's own luck."""
    luck = 0.01 * np.random.default_rng([seed, *arm.encode()]).normal(size=ROWS.size)
    return luck + (ROWS if arm == "treated" else 0.0)


def scored_run(
    folder: Path, arm: str, seed: int, benchmarks: list[str], scores: npt.NDArray[np.float64]
) -> ScoredRun:
    """The same scores in all benchmarks."""
    items = items_table([ItemScore(str(i), str(i), float(score)) for i, score in enumerate(scores)])
    data, folders = items_bytes(items), {name: folder / f"{arm}-{seed}" / name for name in benchmarks}
    for name, place in folders.items():
        result = BenchmarkResult(
            run_id=f"{arm}-{seed}", candidate=arm, seed=seed, step=1, weights_digest="", benchmark=name,
            benchmark_sha256="", grader_sha256="", prompt_sha256="", num_items=ROWS.size, num_failed=0,
            score=summarise(items).score, could_detect=None, device_s=0.0, evaluated_s=0.0,
            items_sha256=sha256_of_bytes(data),
        )  # fmt: skip
        save_result(place, result, data)
    record = CampaignRun(
        arm=arm, seed=seed, run_id=f"{arm}-{seed}", recipe_sha256="", weights_digest="", audit_verdict="pass",
        num_attempts=1, device_s=1.0,
    )  # fmt: skip
    return ScoredRun(record, folders)


def gathered(config: CampaignConfig, folder: Path) -> Facts:
    names = [each.name for each in config.benchmarks]
    arms = [
        [scored_run(folder, arm, seed, names, scores_of(arm, seed)) for seed in range(3)]
        for arm in ("baseline", "treated")
    ]
    look = take_look(config.look_plan(), [], name="look", num_seeds=3, is_gate=True)
    return gather_facts(config, "treated", look, *arms, recipe={})


@pytest.mark.parametrize("kind", ["predictions", "suite"])
def test_two_primary_scores_of_the_same_rows_are_no_surer_than_one(config_of, tmp_path: Path, kind: str):
    benchmarks = [{"type": kind, "name": name} for name in ("code", "prose")]
    found = gathered(config_of(benchmarks=benchmarks), tmp_path)
    one = found.benchmarks["code"].effect
    assert float(found.composite.item_variance) == pytest.approx(float(one.item_variance))
    assert found.composite.item_degrees == one.item_degrees


def test_failures_are_those_of_the_worst_seed(tmp_path: Path):
    clean, worst = np.ones(ROWS.size), np.where(np.arange(ROWS.size) < 5, 0.0, 1.0)
    before, after = (
        [scored_run(tmp_path, arm, seed, ["secrets"], scores) for seed, scores in enumerate(of_seeds)]
        for arm, of_seeds in (("baseline", [clean] * 3), ("treated", [clean, worst, clean]))
    )
    found = benchmark_facts("secrets", "safety", before, after, kind="suite")
    assert (found.failed.sum(), found.failed.size) == (5, ROWS.size)
