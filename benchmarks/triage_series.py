"""Series whose changes are known: noises of several kinds, and published results of benchmarks, shuffled."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from jaxtyping import Float64

NEVER = ("commit", "committed_s", "measured_s", "machine", "python", "env")
"""Columns that are no measurements."""
LEAST_MEASUREMENTS = 100


def autoregressive(rng: np.random.Generator, number: int) -> Float64[np.ndarray, " row"]:
    """Each value is half of the one before, and a shock."""
    values = np.zeros(number + 100)
    for index, shock in enumerate(rng.normal(size=number + 99), 1):
        values[index] = 0.5 * values[index - 1] + shock
    return values[100:]


NOISES: dict[str, Callable[[np.random.Generator, int], Float64[np.ndarray, " row"]]] = {
    "white": lambda rng, number: 0.02 * rng.normal(size=number),
    "autoregressive": lambda rng, number: 0.02 * autoregressive(rng, number),
    "heavy tails": lambda rng, number: 0.02 * rng.standard_t(3, number),
    "log-normal": lambda rng, number: np.log(rng.lognormal(size=number)),
    # The command takes the logarithm of what is positive; as they are, 6 to 8% of 400 such raise an alarm.
    "log-normal, as it is": lambda rng, number: 0.02 * rng.lognormal(size=number),
}


def benchmark_histories(published: Path) -> list[Float64[np.ndarray, " row"]]:
    """Logarithms of published benchmark results: one series for each benchmark in each frequent environment.
    `published`: the folder of published data."""
    table = pq.read_table(published / "triage/benchmark_history/history.parquet").to_pydict()
    found = []
    for env, _ in Counter(table["env"]).most_common(3):
        here = np.array([item == env for item in table["env"]])
        for name in table:
            if name not in NEVER:
                values = np.array(table[name], float)
                values = values[here & np.isfinite(values) & (values > 0)]
                found += [np.log(values)] if len(values) > LEAST_MEASUREMENTS else []
    return found


def with_step(
    history: Float64[np.ndarray, " row"], number: int, rng: np.random.Generator
) -> tuple[Float64[np.ndarray, " number"], int]:
    """`number` values of a history in shuffled order, with a step of two standard deviations up or down; and
    its place, at least 20 values from either end."""
    values = rng.permutation(history)[:number].copy()
    location = int(rng.integers(20, number - 19))
    values[location:] += 2.0 * values.std() * rng.choice([-1, 1])
    return values, location
