"""What a decision is made from: scores of both arms, and which of their items are the same."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from assay.base.errors import DataError
from assay.decision.config import CampaignConfig
from assay.decision.facts import BenchmarkFacts, Facts, benchmark_facts, facts_of, role_of
from assay.records.benchmark import BenchmarkResult
from assay.records.campaign import CampaignRun
from assay.records.decision import Source
from assay.statistics.benchmark_items import (
    ItemScore,
    items_table,
    score_matrix,
    summarise,
)
from assay.statistics.campaign.looks import take_look
from assay.statistics.effect import estimate_of

ROWS = np.random.default_rng(0).normal(size=80)


def scores_of(arm: str, seed: int) -> npt.NDArray[np.float64]:
    """The candidate differs from the baseline by the row's own noise."""
    noise = 0.01 * np.random.default_rng([seed, *arm.encode()]).normal(size=ROWS.size)
    return noise + (ROWS if arm == "treated" else 0.0)


def facts_about(
    config: CampaignConfig, name: str, scores: list[npt.NDArray[np.float64]], rows: list[tuple[str, str]] | None = None
) -> BenchmarkFacts:
    """From scores of both arms by seed, the baseline's first; `rows` map ids to clusters, by default one each."""
    rows = rows or [(str(i), str(i)) for i in range(ROWS.size)]
    found = []
    for seed, of_run in enumerate(scores):
        items = items_table([ItemScore(*row, float(score)) for row, score in zip(rows, of_run, strict=True)])
        result = BenchmarkResult(
            run_id="", candidate="", seed=seed, step=1, weights_digest="", benchmark=name, benchmark_sha256="",
            grader_sha256="", prompt_sha256="", num_items=ROWS.size, num_failed=0,
            score=summarise(items).score, could_detect=None, device_s=0.0, evaluated_s=0.0, items_sha256="",
        )  # fmt: skip
        found.append((result, items))
    sources = tuple(Source(path=name, sha256="") for _ in found)
    benchmark = next(item for item in config.benchmarks if item.name == name)
    results = tuple(result for result, _ in found)
    return benchmark_facts(benchmark, role_of(config, name), score_matrix(found), results, sources)


def campaign_run(arm: str, seed: int) -> CampaignRun:
    return CampaignRun(
        arm=arm, seed=seed, run_id=f"{arm}-{seed}", recipe_sha256="", weights_digest="", audit_verdict="pass",
        num_attempts=1, device_s=1.0,
    )  # fmt: skip


def facts(config: CampaignConfig, rows: Callable[[str], list[tuple[str, str]]] = lambda name: []) -> Facts:
    """The same scores in all benchmarks; `rows` of each are its ids with their clusters."""
    arms = [(arm, seed) for arm in ("baseline", "treated") for seed in range(3)]
    scores = [scores_of(arm, seed) for arm, seed in arms]
    return facts_of(
        config,
        "treated",
        take_look(config.look_plan(), [], name="look", num_seeds=3, is_gate=True),
        {
            benchmark.name: facts_about(config, benchmark.name, scores, rows(benchmark.name))
            for benchmark in config.benchmarks
        },
        [campaign_run(arm, seed) for arm, seed in arms],
        recipe={},
    )


def test_a_run_that_is_gone_is_named(config_of):
    config, look = config_of(), take_look(config_of().look_plan(), [], name="look", num_seeds=3, is_gate=True)
    runs = [campaign_run(*run) for run in (("baseline", 0), ("baseline", 1), ("treated", 0))]
    with pytest.raises(DataError, match="the run of 'treated' with seed 1 is missing"):
        facts_of(config, "treated", look, {}, runs, recipe={})


@pytest.mark.parametrize("kind", ["predictions", "suite"])
def test_two_primary_scores_of_the_same_rows_are_no_surer_than_one(config_of, kind: str):
    benchmarks = [{"type": kind, "name": name} for name in ("code", "prose")]
    found = facts(config_of(benchmarks=benchmarks))
    one = found.benchmarks["code"].effect
    assert float(found.composite.item_variance) == pytest.approx(float(one.item_variance))
    assert found.composite.item_degrees == one.item_degrees


def test_clusters_of_unequal_size_count_for_what_they_weigh(config_of):
    """Half of the rows are of one author, the others of fifty, which is little more than one draw."""
    names = ["code", "prose"]
    authors = [f"author {max(i - ROWS.size // 2, 0) // 4}" for i in range(ROWS.size)]

    config = config_of(rule={"primary": names, "least_effect": 0.015})
    found = facts(config, lambda name: [(f"{name}-{i}", author) for i, author in enumerate(authors)])
    alone = facts(config, lambda name: [(f"{name}-{i}", str(i)) for i in range(len(authors))])
    for name in names:
        assert 1.0 <= float(found.benchmarks[name].effect.item_degrees) < 2.0
        seeds = np.array([True, False, True])
        assert float(found.benchmarks[name].of_seeds(seeds).effect.item_degrees) < 2.0
        assert float(found.benchmarks[name].harm.upper) > float(alone.benchmarks[name].harm.upper)
        assert found.benchmarks[name].trials.number < alone.benchmarks[name].trials.number
    assert float(found.composite.half_width(0.95)) > 1.5 * float(alone.composite.half_width(0.95))


def test_benchmarks_of_suites_that_have_some_items_in_common_are_known_by_their_ids(config_of):
    """Sixty of eighty ids stand in both."""
    rule = {"primary": ["code", "prose"], "least_effect": 0.015}
    shift = {"code": 0, "prose": 20}
    found = facts(
        config_of(rule=rule),
        lambda name: [(str(i + shift.get(name, 0)),) * 2 for i in range(ROWS.size)],
    )
    draws = found.benchmarks["code"].items, found.benchmarks["prose"].items
    assert draws[0].name == draws[1].name
    alone = sum(float(found.benchmarks[name].effect.item_variance) for name in shift) / 4
    assert float(found.composite.item_variance) != pytest.approx(alone, rel=0.02)


def test_other_rows_of_the_same_authors_share_the_authors_luck(config_of):
    benchmarks = [{"type": "predictions", "name": name, "cluster": "author"} for name in ("code", "prose")]
    config = config_of(benchmarks=benchmarks, rule={"primary": ["code", "prose"], "least_effect": 0.015})
    found = facts(config, lambda name: [(f"{name}-{i}", f"author {i // 8}") for i in range(ROWS.size)])
    one = float(found.benchmarks["code"].effect.item_variance)
    assert float(found.composite.item_variance) == pytest.approx(one)


def test_failures_are_those_of_the_worst_seed(config_of):
    clean, worst = np.ones(ROWS.size), np.where(np.arange(ROWS.size) < 5, 0.0, 1.0)
    found = facts_about(config_of(), "secrets", [clean] * 3 + [clean, worst, clean])
    assert (found.failed.sum(), found.failed.size) == (5, ROWS.size)


def test_no_bound_of_a_share_is_beyond_what_a_share_can_differ_by(config_of):
    found = facts(config_of(rule={"primary": ["code", "prose"], "least_effect": 0.015}))
    wild = found.benchmarks["code"]._replace(candidate=100.0 * found.benchmarks["code"].candidate)
    seeds = np.array([True, False, True])
    code = wild.of_seeds(seeds)
    of_code = estimate_of(code.effect)
    assert -1.0 <= of_code.low <= of_code.high <= 1.0
    assert -1.0 <= float(code.harm.lower) <= float(code.harm.upper) <= 1.0
    without = found._replace(benchmarks={**found.benchmarks, "code": wild}).without_seed(1)
    assert float(without.composite.lower(0.999)) >= -1.0 and float(without.composite.upper(0.999)) <= 1.0
    assert all(float(effect.upper(0.999)) <= 1.0 for effect in without.breadth.left_out.values())
