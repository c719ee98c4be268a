"""The loss of a lane: made with which keys and in which precision, in later updates too."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from assay.base.seeds import derive_key
from assay.data.loader.batch import LaneShare
from assay.distributed.rank_device import autocast
from assay.training.numerics import MetricSum
from assay.training.trainer.lane_forward import LaneForward, seed_generators
from assay.training.trainer.method import Loss
from noisy_regression import NoisyRegression, PromptRows, micro_batch

CPU = torch.device("cpu")
SEED = 11


def forward_of(method: Any, **choices: Any) -> LaneForward:
    return LaneForward(method, device=CPU, seed=SEED, **{"precision": "float32", **choices})


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def prompts(lane: int, *rows: int) -> LaneShare:
    return LaneShare(lane, (micro_batch(rows),))


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_generators_are_seeded_as_pytorch_seeds_them(key) -> None:
    seed_generators(key)
    ours = torch.rand(3)
    torch.manual_seed(key)
    assert torch.equal(ours, torch.rand(3))


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("auto", torch.float32), ("float32", torch.float32), ("bfloat16", torch.bfloat16)],
)
def test_a_forward_pass_on_a_cpu_is_in_bfloat16_only_if_asked_for(precision, dtype) -> None:
    layer = torch.nn.Linear(2, 2)
    with autocast(precision, CPU):
        assert layer(torch.ones(1, 2)).dtype == dtype
    assert layer.weight.dtype == torch.float32


@pytest.mark.parametrize("has_gpu", [False, True])
def test_a_gpus_generator_is_seeded_alike_where_there_is_one(monkeypatch: pytest.MonkeyPatch, has_gpu) -> None:
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.cuda, "manual_seed", seeded.append)
    seed_generators(7)
    assert seeded == [7] * has_gpu


@pytest.mark.parametrize(
    ("precision", "device", "has_bfloat16", "is_mixed"),
    [
        ("auto", "cuda", True, True),
        ("auto", "cuda", False, False),
        ("auto", "cpu", True, False),
        ("float32", "cuda", True, False),
        ("bfloat16", "cuda", False, True),
    ],
)
def test_auto_is_bfloat16_on_a_gpu_that_has_it(monkeypatch, precision, device, has_bfloat16, is_mixed) -> None:
    requested: list[tuple[object, ...]] = []
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: has_bfloat16)
    monkeypatch.setattr(torch, "autocast", lambda *inputs: requested.append(inputs))
    autocast(precision, torch.device(device))
    assert requested == [(device, torch.bfloat16)] * is_mixed


def test_nothing_is_under_way_before_the_first_loss() -> None:
    forward = forward_of(NoisyRegression())
    assert not forward.is_under_way and forward.lane is None and forward.micro_batch is None
    assert forward.updates_per_step == 1 and Loss(torch.zeros(()), {}).carried == {}


def error_of(model: nn.Module, rows: Sequence[int], *key: Any) -> torch.Tensor:
    """As anybody would write it down."""
    torch.manual_seed(derive_key(SEED, "forward", *key))
    points = torch.tensor([[row / 10, 0.0, 0.0] for row in rows])
    points[:, 1], points[:, 2] = torch.tensor(rows).float().sin(), torch.tensor(rows).float().cos()
    return (model(points) + torch.rand(len(rows), 1)).square().sum()


def test_a_later_update_has_noise_of_its_own_and_what_the_first_one_found() -> None:
    forward, model, lane = forward_of(PromptRows(), updates_per_step=3), model_of(), prompts(2, 4, 5)
    two = LaneShare(2, (*lane.micro_batches, micro_batch([6])))
    first = [forward.loss(model, two, index, step=7).sum.item() for index in (0, 1)]
    assert first == pytest.approx([error_of(model, [4, 5], 7, 2, 0).item(), error_of(model, [6], 7, 2, 1).item()])
    for update in (1, 2):
        for index, rows in enumerate([[4, 5], [6]]):
            loss = forward.loss(model, two, index, step=7, update=update).sum.item()
            again = error_of(model, rows, 7, 2, index, "update", update).item()
            assert loss == pytest.approx(again * (1 + first[index]))
    assert forward.updates_per_step == 3


def test_nothing_is_kept_of_a_step_that_makes_one_update() -> None:
    forward = forward_of(PromptRows())
    forward.loss(model_of(), prompts(2, 4), 0, step=7)
    assert not forward._carried


def test_the_lane_and_rows_whose_loss_is_computed_can_be_told() -> None:
    forward, lane, seen = forward_of(Failing(), precision="bfloat16"), prompts(2, 4), []
    with failing(lambda: seen.append((forward.is_under_way, forward.lane, forward.micro_batch))):
        forward.loss(model_of(), lane, 0, step=7)
    assert seen == [(True, 2, lane.micro_batches[0])] and not forward.is_under_way
    assert forward.micro_batch is lane.micro_batches[0]
    with failing(lambda: seen.append((forward.is_under_way, forward.lane, forward.micro_batch))):
        forward.loss(model_of(), lane, 1, step=7)
    assert seen[1] == (False, None, None), "a blank is of no lane"


class Failing(NoisyRegression):
    """Shows itself to who looks, and fails."""

    look: Callable[[], None]

    def loss(self, model: nn.Module, tensors: Any, frozen_models: Any) -> Loss:
        assert torch.is_autocast_enabled("cpu")
        Failing.look()
        raise ArithmeticError("as planned")


@contextmanager
def failing(look: Callable[[], None]) -> Iterator[None]:
    Failing.look = staticmethod(look)  # type: ignore[assignment]
    with pytest.raises(ArithmeticError, match="as planned"):
        yield


class Offset(NoisyRegression):
    """Reports the sum of a blank as a number that is not zero."""

    def loss(self, model: nn.Module, tensors: Any, frozen_models: Any) -> Loss:
        error = model(tensors["points"]).sum()
        return Loss(error + 3.0, {name: MetricSum(error.detach() + 2.0, 5.0) for name in self.metrics})


def test_what_a_blank_finds_counts_as_zero() -> None:
    model = model_of()
    loss = forward_of(Offset()).loss(model, prompts(0, 1), 1, step=1)
    assert loss.sum.item() == 0.0
    assert [(metric.sum.item(), metric.weight) for metric in loss.metrics.values()] == [(0.0, 0.0)] * 2
    loss.sum.backward()  # type: ignore[no-untyped-call]
    assert model.weight.grad is not None and not model.weight.grad.any()
