"""What a decision is made from: results on disk, and which of their items are the same."""

from pathlib import Path

import numpy as np
import pytest

from assay.base.digest import sha256_of_bytes
from assay.evaluation.decision.config import CampaignConfig
from assay.evaluation.decision.facts import Facts, ScoredRun, gather_facts
from assay.evaluation.evidence.benchmark_items import (
    ItemScore,
    items_bytes,
    items_table,
    save_result,
    summarise,
)
from assay.evaluation.evidence.looks import take_look
from assay.records.benchmark import BenchmarkResult
from assay.records.campaign import CampaignRun

ROWS = np.random.default_rng(0).normal(size=80)


def scored_run(folder: Path, arm: str, seed: int, benchmarks: list[str]) -> ScoredRun:
    """Benchmarks whose candidate differs from the baseline by the row's own luck, the same in all of them."""
    luck = 0.01 * np.random.default_rng([seed, *arm.encode()]).normal(size=ROWS.size)
    scores = luck + (ROWS if arm == "treated" else 0.0)
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
    arms = [[scored_run(folder, arm, seed, names) for seed in range(3)] for arm in ("baseline", "treated")]
    look = take_look(config.look_plan(), [], name="look", num_seeds=3, is_gate=True)
    return gather_facts(config, "treated", look, *arms, recipe={})


@pytest.mark.parametrize("kind", ["predictions", "suite"])
def test_two_primary_scores_of_the_same_rows_are_no_surer_than_one(config_of, tmp_path: Path, kind: str):
    benchmarks = [{"type": kind, "name": name} for name in ("code", "prose")]
    found = gathered(config_of(benchmarks=benchmarks), tmp_path)
    one = found.benchmarks["code"].effect
    assert float(found.composite.item_variance) == pytest.approx(float(one.item_variance))
    assert found.composite.item_degrees == one.item_degrees
