"""Durations that differ by place, by work, or by neither; with spikes, and a known effect."""

import numpy as np
import pytest

from assay.base.errors import ConfigError, DataError
from assay.records.skew import Skew
from assay.triage.attempts.columns import columns_of
from assay.triage.skew import Durations, durations_of, split_skew
from variants import slow


def run(rng: np.random.Generator, *, slow_worker: float = 1.0, uneven: float = 1.0) -> Skew:
    """Eight workers in 60 steps: worker 5 takes `slow_worker` times as long, every tenth step `uneven`."""
    worker, step = (array.ravel() for array in np.meshgrid(np.arange(8), np.arange(60)))
    seconds = 0.2 * np.exp(rng.normal(0, 0.03, worker.size))
    seconds *= np.where(worker == 5, slow_worker, 1.0) * np.where(step % 10 == 3, uneven, 1.0)
    seconds[rng.random(worker.size) < 0.01] *= 5.0
    location, work = {"worker": worker.astype(str).tolist()}, {"step": step.astype(str).tolist()}
    return split_skew(Durations(seconds, location, work, [""] * worker.size, {}))


@pytest.mark.parametrize("tries", [10, *slow(100)])
def test_a_slow_worker_is_a_place_and_its_ratio_is_told(tries: int) -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(tries):
        found = run(rng, slow_worker=1.2)
        assert found.verdict == "location" and found.effects[0].factors == {"worker": "5"}
        covered += found.effects[0].low <= 1.2 <= found.effects[0].high
    assert covered >= 0.9 * tries


@pytest.mark.parametrize("tries", [10, *slow(100)])
def test_uneven_batches_are_work_and_nothing_is_even(tries: int) -> None:
    rng = np.random.default_rng(1)
    for _ in range(tries):
        found = run(rng, uneven=1.5)
        assert found.verdict == "work"
        assert {effect.factors["step"] for effect in found.effects} == {str(step) for step in range(3, 60, 10)}
        assert run(rng).verdict == "even"


def pipeline(rng: np.random.Generator, *, lengths: float = 0.0, worker: float = 1.0, stage: float = 1.0) -> Skew:
    """Four stages of six ranks in 30 steps, forward and backward; each rank has sequences of its own lengths. Worker 3
    of stage 2 takes `worker` times as long, all of stage 1 `stage`."""
    axes = (np.arange(number) for number in (4, 6, 30, 2))
    stages, ranks, steps, kinds = (axis.ravel() for axis in np.meshgrid(*axes))
    logs = rng.normal(0.0, 0.02, stages.size) + rng.normal(0.0, lengths, (6, 30))[ranks, steps] + 0.7 * kinds
    logs += np.where((stages == 2) & (ranks == 3), np.log(worker), 0.0) + np.where(stages == 1, np.log(stage), 0.0)
    texts = [axis.astype(str).tolist() for axis in (stages, ranks, steps, kinds)]
    return split_skew(Durations(np.exp(logs), {"stage": texts[0], "dp": texts[1]}, {"step": texts[2]}, texts[3], {}))


def slow_locations(found: Skew) -> list[dict[str, str]]:
    """Of each kind's effects of location, the largest first."""
    return [effect.factors for effect in found.effects if effect.side == "location"]


def test_a_slow_worker_of_one_stage_is_a_combination_and_a_stage_is_none() -> None:
    rng = np.random.default_rng(0)
    for _ in range(5):
        assert slow_locations(pipeline(rng, worker=2.4)) == [{"stage": "2", "dp": "3"}] * 2
        assert slow_locations(pipeline(rng, stage=1.3)) == [{"stage": "1"}] * 2
        found = pipeline(rng, worker=2.4, stage=1.3)
        assert slow_locations(found) == [{"stage": "2", "dp": "3"}] * 2 + [{"stage": "1"}] * 2
        assert all(
            effect.low < ratio < effect.high for effect, ratio in zip(found.effects, (2.4, 2.4, 1.3, 1.3), strict=True)
        )


def test_half_of_a_stages_workers_are_workers_and_no_stage() -> None:
    rng = np.random.default_rng(0)
    stages, ranks, steps = (axis.ravel() for axis in np.meshgrid(np.arange(4), np.arange(6), np.arange(30)))
    logs = rng.normal(0.0, 0.02, stages.size) + np.where((stages == 2) & (ranks < 3), 0.5, 0.0)
    texts = [axis.astype(str).tolist() for axis in (stages, ranks, steps)]
    location = {"stage": texts[0], "dp": texts[1]}
    found = split_skew(Durations(np.exp(logs), location, {"step": texts[2]}, [""] * len(logs), {}))
    assert sorted(item["dp"] for item in slow_locations(found)) == ["0", "1", "2"]
    assert all(item["stage"] == "2" for item in slow_locations(found))


def test_lengths_that_each_rank_has_of_its_own_are_work_and_no_place() -> None:
    rng = np.random.default_rng(0)
    for _ in range(5):
        found = pipeline(rng, lengths=0.4)
        assert (found.verdict, slow_locations(found)) == ("work", [])
        assert found.work_sd == pytest.approx(0.4, rel=0.15)
        found = pipeline(rng, lengths=0.2, worker=1.6)
        assert (found.verdict, slow_locations(found)) == ("both", [{"stage": "2", "dp": "3"}] * 2)


@pytest.mark.parametrize("workers,steps", [(2, 3), (4, 5), (8, 20)])
def test_noise_of_few_durations_is_even(workers: int, steps: int) -> None:
    rng, verdicts = np.random.default_rng(0), []
    for _ in range(50):
        worker, step = (axis.ravel().astype(str).tolist() for axis in np.meshgrid(np.arange(workers), np.arange(steps)))
        seconds = np.exp(rng.normal(0.0, 0.05, len(worker)))
        found = split_skew(Durations(seconds, {"worker": worker}, {"step": step}, [""] * len(worker), {}))
        verdicts.append(found.verdict)
    assert verdicts.count("even") >= 48


def test_a_column_that_is_two_things_or_holds_no_duration_is_refused() -> None:
    table = columns_of([{"s": "0.1", "worker": "0", "none": ""}, {"s": "0.2", "worker": "1"}], "t.csv")
    columns = {"location": ("worker",), "kind": None}
    with pytest.raises(ConfigError, match="'worker' is there twice"):
        durations_of(table, value="s", work=("worker",), **columns)
    with pytest.raises(DataError, match=r"'none' \(--value\) holds no duration"):
        durations_of(table, value="none", work=("s",), **columns)
