"""Per-item scores: written, read, summarised and laid side by side."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.base.digest import sha256_of_bytes
from assay.base.errors import ConfigError, DamagedDataError, DataError
from assay.records.benchmark import BenchmarkResult
from assay.scoring.grade import ItemFailure
from assay.statistics.benchmark_items import (
    ITEMS_FILE,
    ItemScore,
    items_bytes,
    items_of,
    items_table,
    load_result,
    read_items,
    read_score_matrix,
    save_result,
    summarise,
)

TIMEOUT = ItemFailure("sampler_timeout", "60 s")


def saved(folder: Path, scores: list[float | None], *, seed: int = 0, prompt: str = "p") -> Path:
    items = [
        ItemScore(f"i{k:03d}", f"c{k // 2}", score, failure=None if score is not None else TIMEOUT)
        for k, score in enumerate(scores)
    ]
    data = items_bytes(items_table(items))
    summary = summarise(items_table(items))
    result = BenchmarkResult(
        run_id=f"run-{seed}", candidate="baseline", seed=seed, step=10, weights_digest="w", benchmark="b",
        benchmark_sha256="b", grader_sha256="g", prompt_sha256=prompt, num_items=len(scores),
        num_failed=summary.num_failed, score=summary.score, could_detect=summary.could_detect, device_s=1.0,
        evaluated_s=0.0, items_sha256=sha256_of_bytes(data),
    )  # fmt: skip
    save_result(folder, result, data)
    return folder


def test_a_result_and_its_items_come_back_as_written(tmp_path: Path):
    folder = saved(tmp_path / "r", [1.0, 0.0, None, 1.0])
    result = load_result(folder)
    table = read_items(folder, result)
    assert result.num_failed == 1
    assert table["score"].to_pylist() == [1.0, 0.0, None, 1.0]
    assert table["failure_kind"].to_pylist() == [None, None, "sampler_timeout", None]
    assert table["failure"].to_pylist() == [None, None, "60 s", None]


def test_items_come_back_from_their_table_as_they_were():
    items = [
        ItemScore("a", "c", 0.5, 2.0, completion="said", details="{}"),
        ItemScore("b", "c", None, failure=TIMEOUT),
    ]
    assert items_of(items_table(items)) == items


def test_changed_items_are_refused(tmp_path: Path):
    folder = saved(tmp_path / "r", [1.0, 0.0])
    (folder / ITEMS_FILE).write_bytes(items_bytes(items_table([ItemScore("i000", "c0", 1.0)])))
    with pytest.raises(DamagedDataError, match="changed after it was written"):
        read_items(folder, load_result(folder))


def test_an_item_listed_twice_is_refused():
    with pytest.raises(DataError, match="item 'a' is listed more than once"):
        items_table([ItemScore("a", "c", 1.0), ItemScore("a", "c", 0.0)])


def test_seeds_are_laid_side_by_side_without_the_items_that_failed_in_any(tmp_path: Path):
    one = saved(tmp_path / "1", [1.0, 0.0, None, 1.0], seed=1)
    two = saved(tmp_path / "2", [0.0, 0.0, 1.0, 1.0], seed=2)
    matrix = read_score_matrix([one, two])
    assert matrix.scores.tolist() == [[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]
    assert matrix.item_ids == ("i000", "i001", "i003")
    assert matrix.clusters.tolist() == [0, 0, 1]
    assert matrix.num_dropped == 1


@pytest.mark.parametrize("far", [1e300, -1e101, float("inf")])
def test_a_score_of_a_model_that_diverged_is_none(tmp_path: Path, far: float):
    folders = [saved(tmp_path / "a", [1.0, 0.0, far]), saved(tmp_path / "b", [1.0, 1e100, 1.0], seed=1)]
    matrix = read_score_matrix(folders)
    assert matrix.item_ids == ("i000", "i001") and matrix.num_dropped == 1 and matrix.scores.max() == 1e100


def test_results_of_other_prompts_are_not_laid_side_by_side(tmp_path: Path):
    one, two = saved(tmp_path / "1", [1.0, 0.0]), saved(tmp_path / "2", [1.0, 0.0], prompt="q")
    with pytest.raises(ConfigError, match="differ in prompt_sha256: p and q"):
        read_score_matrix([one, two])


def test_no_score_at_all_is_an_error_that_says_why():
    with pytest.raises(DataError, match=r"none of 1 items has a score.*timeout: slow"):
        summarise(items_table([ItemScore("a", "a", None, failure=ItemFailure("sampler_timeout", "slow"))]))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=40))
def test_copies_of_an_item_in_its_cluster_add_no_certainty(scores: list[float]):
    once = [ItemScore(f"{k}", f"{k}", score) for k, score in enumerate(scores)]
    copied = [item._replace(item_id=f"{item.item_id}/{copy}") for item in once for copy in range(4)]
    alone, clustered = summarise(items_table(once)).score, summarise(items_table(copied)).score
    assert clustered.value == pytest.approx(alone.value)
    assert clustered.high == pytest.approx(alone.high)


@pytest.mark.parametrize(
    ("unit", "highest", "is_cut"), [("share", 1.0, True), ("nats", 1.0, False), ("share", 1.5, False)]
)
def test_the_interval_of_graded_shares_holds_no_impossible_share(unit: str, highest: float, is_cut: bool):
    items = [ItemScore(f"{k}", f"{k}", highest if k else 0.25) for k in range(20)]
    score = summarise(items_table(items), unit).score
    assert score.high is not None and (score.high <= 1.0) == is_cut


@pytest.mark.slow
def test_the_interval_of_clustered_items_covers_the_truth():
    """95% nominal: 93 to 97% of 1,000 data sets of 60 clusters with common noise."""
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(1000):
        noise = np.repeat(rng.normal(size=60), 5)
        values = noise + 0.5 * rng.normal(size=300)
        items = [ItemScore(f"{k}", f"{k // 5}", value) for k, value in enumerate(values.tolist())]
        score = summarise(items_table(items)).score
        hits += score.low <= 0.0 <= score.high
    assert 930 <= hits <= 970


def test_a_passage_that_has_half_of_the_questions_makes_the_interval_wide():
    """Fifty others of two questions each say nothing of how lucky that one was."""
    rng = np.random.default_rng(4)
    passages = [0] * 100 + [k // 2 for k in range(2, 102)]
    covered = 0
    for _ in range(300):
        noise = rng.normal(size=51)[passages]
        items = [ItemScore(f"{k}", f"{passages[k]}", value) for k, value in enumerate(noise.tolist())]
        score = summarise(items_table(items)).score
        covered += score.low <= 0.0 <= score.high
    assert covered >= 285


def test_a_perfect_benchmark_of_few_items_would_not_notice_little():
    detectable = summarise(items_table([ItemScore(f"{k}", f"{k}", 1.0) for k in range(50)])).could_detect
    assert 0.1 < detectable.effect < 0.2


def test_what_it_could_detect_is_detected_with_the_stated_power():
    rng = np.random.default_rng(0)
    base = rng.normal(size=400)
    effect = summarise(items_table([ItemScore(f"{k}", f"{k}", x) for k, x in enumerate(base)])).could_detect.effect
    first, second = rng.normal(size=(2000, 400)), rng.normal(size=(2000, 400)) + effect
    difference = second - first
    z = difference.mean(axis=1) / (difference.std(axis=1, ddof=1) / 20)
    assert (z > 1.96).mean() == pytest.approx(0.8, abs=0.05)
