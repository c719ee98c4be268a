"""Outer steps against torch.optim.SGD, means of models and exact sums."""

import os
import subprocess
import sys
from copy import deepcopy
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.training.outer.config import AverageConfig, NesterovConfig
from assay.training.outer.update import OuterOptimizer

SHAPES = {"matrix": (37, 29), "vector": (5,), "scalar": ()}
AVERAGE = OuterOptimizer(AverageConfig())


def random_tensors(seed: int, scale: float = 1.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: scale * torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("rate, momentum", [(0.7, 0.9), (1.0, 0.5), (0.3, 0.0)])
def test_nesterov_is_pytorchs_sgd_on_the_negative_mean(rate, momentum) -> None:
    optimizer = OuterOptimizer(NesterovConfig(type="nesterov", rate=rate, momentum=momentum))
    weights = random_tensors(0)
    state = optimizer.momentum_of(weights)
    reference = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in weights.items()}
    sgd = torch.optim.SGD(reference.values(), lr=rate, momentum=momentum, nesterov=momentum > 0)
    for step in range(1, 30):
        changes = [(weight, random_tensors(100 * step + weight, scale=0.1)) for weight in (1, 5, 2)]
        for name, parameter in reference.items():
            parameter.grad = -sum((weight * change[name] for weight, change in changes), torch.zeros(())) / 8
        sgd.step()
        optimizer.update(weights, state, changes)
        for name, parameter in reference.items():
            torch.testing.assert_close(weights[name], parameter.detach(), rtol=1e-5, atol=1e-6)


def test_averaging_equal_weights_gives_the_mean_of_the_models() -> None:
    start, ends = random_tensors(0), [random_tensors(seed) for seed in (1, 2, 3, 4)]
    changes = [(640, {name: end[name] - start[name] for name in SHAPES}) for end in ends]
    AVERAGE.update(start, AVERAGE.momentum_of(start), changes)
    for name in SHAPES:
        mean = torch.stack([end[name] for end in ends]).mean(0)
        torch.testing.assert_close(start[name], mean, rtol=1e-6, atol=1e-6)


def test_one_cluster_alone_arrives_at_its_own_weights() -> None:
    start, change = random_tensors(0), random_tensors(1)
    expected = {name: start[name] + change[name] for name in SHAPES}
    AVERAGE.update(start, {}, [(12_345, change)])
    assert all(start[name].equal(expected[name]) for name in SHAPES)


value = st.floats(-100, 100, width=32, allow_subnormal=False)


@settings(deadline=None, max_examples=100)
@given(changes=st.lists(st.tuples(st.integers(1, 2**28), value), min_size=1, max_size=5))
def test_the_mean_is_the_exact_weighted_one_rounded_once(changes) -> None:
    weights = {"w": torch.zeros(())}
    AVERAGE.update(weights, {}, [(weight, {"w": torch.tensor(change)}) for weight, change in changes])
    exact = sum(weight * Fraction(change) for weight, change in changes) / sum(weight for weight, _ in changes)
    lost = 2**-23 * abs(exact) + Fraction(1, 10**12)  # cancellation in float64
    assert abs(Fraction(weights["w"].item()) - exact) <= lost


@pytest.mark.parametrize("config", [AverageConfig(), NesterovConfig(type="nesterov", rate=0.7, momentum=0.9)])
def test_the_bits_are_the_same_on_any_number_of_threads(config) -> None:
    optimizer, threads, found = OuterOptimizer(config), torch.get_num_threads(), set()
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(100_003, generator=generator) for _ in range(4)]
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            start, first, second, state = deepcopy(tensors)
            weights, momentum = {"w": start}, {"w": state}
            optimizer.update(weights, momentum, [(3, {"w": first}), (4, {"w": second})])
            found.add((weights["w"].numpy().tobytes(), momentum["w"].numpy().tobytes()))
    finally:
        torch.set_num_threads(threads)
    assert len(found) == 1


PROGRAM = """
import numpy, torch
from assay.training.outer.change import decode, encode
from assay.training.outer.config import NesterovConfig
from assay.training.outer.update import OuterOptimizer

numbers = numpy.random.default_rng(0)  # torch.randn depends on the instruction set
weight, state, *changes = [{"w": torch.from_numpy(numbers.standard_normal(10_007, "float32"))} for _ in range(6)]
data = [encode(change, bits) for change, bits in zip(changes, (4, 8, 16, 32))]
config = NesterovConfig(type="nesterov", rate=0.7, momentum=0.9)
OuterOptimizer(config).update(weight, state, [(number + 3, decode(part)) for number, part in enumerate(data)])
bits = b"".join(data) + weight["w"].numpy().tobytes() + state["w"].numpy().tobytes()
capability = torch.backends.cpu.get_cpu_capability()
"""


def test_the_bits_are_the_same_on_processors_without_fused_multiply_add() -> None:
    here: dict[str, Any] = {}
    exec(PROGRAM, here)
    without = subprocess.run(
        [sys.executable, "-c", PROGRAM + "import sys; print(capability, bits.hex())"],
        env={**os.environ, "ATEN_CPU_CAPABILITY": "default"},
        capture_output=True,
        check=True,
        text=True,
    )
    assert here["capability"] != "DEFAULT"
    assert without.stdout.split() == ["DEFAULT", here["bits"].hex()]
