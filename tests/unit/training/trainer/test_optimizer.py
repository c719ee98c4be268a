"""The learning rate as a table and beside PyTorch's schedulers; which weights decay; what clipping does."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.optim.lr_scheduler import LambdaLR

from assay.distributed.ranks import Ranks
from assay.training.trainer.config import OptimizerConfig, ScheduleConfig
from assay.training.trainer.optimizer import average_and_clip, build_optimizer, gradient_norm, learning_rate
from forked_ranks import on_ranks


def rates(kind: str, *, num_steps: int, warmup_steps: int = 0, final_fraction: float = 0.1) -> list[float]:
    schedule = ScheduleConfig(type=kind, warmup_steps=warmup_steps, final_fraction=final_fraction)
    config = OptimizerConfig(learning_rate=0.8, schedule=schedule)
    return [learning_rate(config, step=step, num_steps=num_steps) for step in range(1, num_steps + 1)]


TABLE = [
    # kind, warm-up, final fraction -> the rate of each of eight steps; the peak is 0.8
    ("constant", 0, 0.1, [0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8]),
    ("constant", 4, 0.1, [0.2, 0.4, 0.6, 0.8, 0.8, 0.8, 0.8, 0.8]),
    ("linear", 0, 0.0, [0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0]),
    ("linear", 4, 0.5, [0.2, 0.4, 0.6, 0.8, 0.7, 0.6, 0.5, 0.4]),
    # (1 + cos(pi p)) / 2 for p = 1/4, 1/2, 3/4, 1
    ("cosine", 4, 0.0, [0.2, 0.4, 0.6, 0.8, 0.682842712, 0.4, 0.117157288, 0.0]),
    ("cosine", 4, 0.25, [0.2, 0.4, 0.6, 0.8, 0.712132034, 0.5, 0.287867966, 0.2]),
    ("cosine", 8, 0.25, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]),
]


@pytest.mark.parametrize("kind, warmup_steps, final_fraction, expected", TABLE)
def test_the_rate_of_each_step(kind, warmup_steps, final_fraction, expected) -> None:
    found = rates(kind, num_steps=8, warmup_steps=warmup_steps, final_fraction=final_fraction)
    assert found == pytest.approx(expected, abs=1e-9)


def test_a_warm_up_longer_than_the_run_never_reaches_the_peak() -> None:
    assert rates("cosine", num_steps=3, warmup_steps=8) == pytest.approx([0.1, 0.2, 0.3])


@settings(deadline=None, max_examples=40)
@given(
    kind=st.sampled_from(["linear", "cosine"]),
    num_steps=st.integers(1, 40),
    warmup_steps=st.integers(0, 40),
    final_fraction=st.floats(0, 1),
)
def test_a_lambda_under_pytorchs_own_scheduler_gives_the_same_rates(
    kind, num_steps, warmup_steps, final_fraction
) -> None:
    assume(warmup_steps < num_steps)

    def factor(updates: int) -> float:
        """As Hugging Face's `get_cosine_schedule_with_warmup` has it, from the step on that is being made."""
        step = updates + 1
        if step < warmup_steps:
            return step / warmup_steps
        left = (num_steps - step) / (num_steps - warmup_steps)
        falling = left if kind == "linear" else math.sin(math.pi / 2 * left) ** 2
        return final_fraction + (1 - final_fraction) * falling

    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.8)
    scheduler, expected = LambdaLR(optimizer, factor), []
    for _ in range(num_steps):
        expected += scheduler.get_last_lr()
        optimizer.step()
        scheduler.step()
    found = rates(kind, num_steps=num_steps, warmup_steps=warmup_steps, final_fraction=final_fraction)
    assert found == pytest.approx(expected, abs=1e-9)


def test_matrices_decay_and_vectors_do_not() -> None:
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 2), nn.LayerNorm(2))
    optimizer = build_optimizer(model, OptimizerConfig(learning_rate=0.5, weight_decay=0.25))
    before = {name: weights.detach().clone() for name, weights in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    decayed = {name for name, weights in model.named_parameters() if not torch.equal(weights, before[name])}
    assert decayed == {"0.weight", "1.weight"}
    torch.testing.assert_close(model[1].weight, before["1.weight"] * (1 - 0.5 * 0.25))


def test_what_is_frozen_is_not_in_the_optimizer() -> None:
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    groups = build_optimizer(model, OptimizerConfig()).param_groups
    assert [[weights.shape for weights in group["params"]] for group in groups] == [[torch.Size([2, 3])]]


def gradients() -> list[torch.Tensor]:
    """Matrices and vectors of few and many rows, so that some ranks have fewer than others, or none."""
    generator = torch.Generator().manual_seed(5)
    shapes = [(5, 3), (1, 4), (8, 2, 2), (7,), (2,)]
    return [torch.randn(shape, generator=generator) * 10.0**index for index, shape in enumerate(shapes)]


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_norm_has_the_same_bits_however_the_rows_are_sharded(world_size: int, tmp_path: Path) -> None:
    def norm_of_shards(ranks: Ranks) -> float:
        mesh = DeviceMesh.from_group(ranks.inner, "cpu")
        return float(gradient_norm([distribute_tensor(whole, mesh, [Shard(0)]) for whole in gradients()]))

    norms = on_ranks(world_size, norm_of_shards, tmp_path, shards_weights=True)
    assert set(norms) == {float(gradient_norm(gradients()))}
    flat = torch.cat([gradient.double().flatten() for gradient in gradients()])
    assert norms[0] == pytest.approx(float(flat.norm()), rel=1e-6)


def test_the_plain_kernels_update_what_is_not_on_a_gpu_all_tensors_at_once() -> None:
    """The fused one rounds the tail of a tensor in its own way, so shards would have other bits."""
    config = OptimizerConfig(learning_rate=0.5, betas=(0.5, 0.75), epsilon=0.125, weight_decay=0.25)
    [group] = build_optimizer(nn.Linear(3, 2, bias=False), config).param_groups
    chosen = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay", "fused", "foreach")}
    assert chosen == {
        "lr": 0.5, "betas": (0.5, 0.75), "eps": 0.125, "weight_decay": 0.25, "fused": False, "foreach": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("gradient", "weight", "max_norm", "norm", "becomes"),
    [
        ([6.0, 8.0], 2, None, 5.0, [3.0, 4.0]),
        ([6.0, 8.0], 2, 5.0, 5.0, [3.0, 4.0]),
        ([6.0, 8.0], 2, 2.5, 5.0, [1.5, 2.0]),
        ([6.0, 8.0], 1, 20.0, 10.0, [6.0, 8.0]),
        ([math.inf, 8.0], 2, 1.0, math.inf, [math.inf, 8.0]),
        ([math.nan, 8.0], 2, 1.0, math.nan, [math.nan, 8.0]),
        ([0.0, 0.0], 4, 1.0, 0.0, [0.0, 0.0]),
    ],
)
def test_a_sum_becomes_the_mean_no_longer_than_allowed(gradient, weight, max_norm, norm, becomes) -> None:
    inputs = torch.tensor(gradient)
    found = average_and_clip([inputs], weight=weight, max_norm=max_norm)
    assert float(found) == pytest.approx(norm, nan_ok=True)
    torch.testing.assert_close(inputs, torch.tensor(becomes), equal_nan=True)


@pytest.mark.parametrize("max_norm", [None, 1e-3, 1e9])
def test_mean_and_clipping_on_the_device_have_the_bits_of_numbers_on_the_host(max_norm: float | None) -> None:
    clipped, weight = gradients(), 37
    norm = float(average_and_clip(clipped, weight=weight, max_norm=max_norm))
    assert norm == float(gradient_norm(gradients())) / weight
    factor = 1 / weight
    if max_norm is not None and norm > max_norm:
        factor *= max_norm / norm
    assert all(torch.equal(one, gradient * factor) for one, gradient in zip(clipped, gradients(), strict=True))
