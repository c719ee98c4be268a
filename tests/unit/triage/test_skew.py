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


def test_a_column_that_is_two_things_or_holds_no_duration_is_refused() -> None:
    table = columns_of([{"s": "0.1", "worker": "0", "none": ""}, {"s": "0.2", "worker": "1"}], "t.csv")
    columns = {"location": ("worker",), "kind": None}
    with pytest.raises(ConfigError, match="'worker' is there twice"):
        durations_of(table, value="s", work=("worker",), **columns)
    with pytest.raises(DataError, match=r"'none' \(--value\) holds no duration"):
        durations_of(table, value="none", work=("s",), **columns)
