"""Ladders of runs whose law is known."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from assay.statistics.scaling.points import ScalingPoints, read_points, scaling_points

TRUTH = {"A": 480.0, "B": 2100.0, "E": 1.82, "alpha": 0.35, "beta": 0.37}


def make_ladder(
    *, num_sizes: int = 8, noise: float = 0.004, seed: int = 0, truth: dict[str, float] = TRUTH
) -> ScalingPoints:
    """Sizes from 10 M to 3 G parameters, each at 5 to 80 tokens per parameter."""
    rng = np.random.default_rng(seed)
    ratios = np.array([5.0, 10.0, 20.0, 40.0, 80.0])
    parameters = np.repeat(np.geomspace(1e7, 3e9, num_sizes), len(ratios))
    tokens = parameters * np.tile(ratios, num_sizes)
    loss = truth["E"] + truth["A"] / parameters ** truth["alpha"] + truth["B"] / tokens ** truth["beta"]
    loss *= np.exp(rng.normal(0.0, noise, len(loss)))
    return scaling_points(loss, parameters=parameters, tokens=tokens)


@pytest.fixture
def ladder() -> Callable[..., ScalingPoints]:
    return make_ladder


@pytest.fixture
def truth() -> dict[str, float]:
    return TRUTH


@pytest.fixture
def hoffmann(published_data: Path) -> ScalingPoints:
    """The runs of Hoffmann et al. 2022, figure 4, as Epoch AI fitted them."""
    return read_points(published_data / "chinchilla" / "svg_extracted_data.csv").without_highest_losses(5)
