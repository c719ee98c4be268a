"""Levels: planted changes are found where they are, in real noise too; noise alone seldom raises an alarm."""

import math
from pathlib import Path

import numpy as np
import pytest

from assay.triage.slow.detect import find_levels
from triage_series import NOISES, benchmark_histories, with_step
from variants import slow

LEAST = math.log1p(0.005)


@pytest.fixture(scope="module")
def histories(published_data: Path) -> list[np.ndarray]:
    return benchmark_histories(published_data)


LONG = slow(*((name, 400) for name in NOISES if name != "log-normal, as it is"))


@pytest.mark.parametrize(
    "case", [("autoregressive", 60), *slow(*((name, 60) for name in NOISES if name != "autoregressive")), *LONG]
)
def test_noise_alone_raises_an_alarm_in_at_most_seven_percent(case: tuple[str, int]) -> None:
    name, number = case
    rng = np.random.default_rng(5)
    tries = 200 if number == 60 else 150
    alarms = sum(bool(find_levels(NOISES[name](rng, number), least=LEAST)[0]) for _ in range(tries))
    assert alarms <= 0.07 * tries


@pytest.mark.parametrize("number", [60, *slow(400)])
def test_shuffled_histories_seldom_raise_one(number: int, histories: list[np.ndarray]) -> None:
    rng, tries = np.random.default_rng(6), 200 if number == 60 else 150
    alarms = 0
    for _ in range(tries):
        values = rng.permutation(histories[rng.integers(len(histories))])[:number]
        alarms += bool(find_levels(values, least=LEAST)[0])
    assert alarms <= 0.07 * tries


@pytest.mark.parametrize("number", [60, *slow(200)])
def test_steps_of_two_standard_deviations_are_found_in_the_noise_of_histories(
    number: int, histories: list[np.ndarray]
) -> None:
    rng, tries, found = np.random.default_rng(7), 150, 0
    for _ in range(tries):
        values, position = with_step(histories[rng.integers(len(histories))], number, rng)
        found += any(abs(change.first - position) <= 3 for change in find_levels(values, least=LEAST)[0])
    assert found >= 0.9 * tries


def test_a_step_below_the_least_is_none() -> None:
    values = np.repeat([0.0, 0.004], 50) + np.random.default_rng(0).normal(0, 1e-4, 100)
    assert find_levels(values, least=LEAST)[0] == ()
    (change,) = find_levels(2 * values, least=LEAST)[0]
    assert change.first == 50 and change.difference == pytest.approx(0.008, abs=1e-4)
    assert abs(change.difference - 0.008) < 4 * change.standard_error
