"""Outer weights in a commit, and the moments that a late cluster returns to."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from assay.training.checkpoint.parts import OPTIMIZER, training_parts
from assay.training.outer.config import AverageConfig, NesterovConfig, OuterOptimizerConfig
from assay.training.outer.weights import OuterWeights

NESTEROV = NesterovConfig(type="nesterov", rate=0.7, momentum=0.9)


class Trained:
    """A small model with AdamW."""

    def __init__(self, config: OuterOptimizerConfig | None = None, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Linear(5, 3)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.outer = None
        if config is not None:
            self.outer = OuterWeights(self.model, training_parts(self.model, self.optimizer)[OPTIMIZER], config)

    def train(self, *steps: int) -> None:
        for step in steps:
            self.optimizer.zero_grad()
            self.model(torch.full((2, 5), float(step))).square().sum().backward()
            self.optimizer.step()

    def state(self) -> dict[str, Any]:
        return deepcopy({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()["state"]})


def with_outer(config: OuterOptimizerConfig, seed: int = 0) -> tuple[Trained, OuterWeights]:
    trained = Trained(config, seed)
    assert trained.outer is not None
    return trained, trained.outer


def test_the_first_inner_steps_are_those_of_a_new_optimizer() -> None:
    (trained, _), plain = with_outer(AverageConfig()), Trained()
    for item in (trained, plain):
        item.train(1, 2, 3)
    torch.testing.assert_close(trained.state(), plain.state(), rtol=0, atol=0)


@pytest.mark.parametrize("accepted", [(), (1, 2, 3)])
def test_a_late_part_leaves_nothing_behind(accepted: tuple[int, ...]) -> None:
    trained, outer = with_outer(AverageConfig())
    trained.train(*accepted)
    outer.accept_moments()
    outer.take_step([(1, outer.change())])
    on_time, digest = trained.state(), outer.moments_digest()
    trained.train(4, 5)
    outer.add_weight(7)
    assert outer.first_moments_digest() == digest != outer.moments_digest()
    outer.return_to_moments()
    outer.take_step([])
    torch.testing.assert_close(trained.state(), on_time, rtol=0, atol=0)
    assert (outer.weight, outer.first_moments_digest()) == (0, digest)
    plain = Trained()
    plain.train(*accepted, 6)
    trained.train(6)
    torch.testing.assert_close(trained.state(), plain.state(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("config", [AverageConfig(), NESTEROV])
def test_a_restored_state_goes_on_as_if_it_had_not_stopped(config: OuterOptimizerConfig) -> None:
    trained, outer = with_outer(config)
    trained.train(1, 2)
    outer.accept_moments()
    outer.take_step([(3, outer.change())])
    trained.train(3)
    outer.add_weight(5)
    restored, other = with_outer(config, seed=1)
    restored.model.load_state_dict(trained.model.state_dict())
    restored.optimizer.load_state_dict(deepcopy(trained.optimizer.state_dict()))
    other.restore(deepcopy(outer.state()))
    for item, weights in ((trained, outer), (restored, other)):
        item.train(4)
        assert weights.weight == 5
        weights.return_to_moments()
        weights.take_step([(1, weights.change())])
        item.train(5)
    torch.testing.assert_close(restored.state(), trained.state(), rtol=0, atol=0)
    assert (other.digest(), other.first_moments_digest()) == (outer.digest(), outer.first_moments_digest())


def test_outer_weights_do_not_follow_the_model() -> None:
    trained, outer = with_outer(AverageConfig())
    digest = outer.digest()
    trained.train(1)
    assert outer.digest() == digest
    change = outer.change()
    for name, parameter in trained.model.named_parameters():
        assert (outer.weights[name] + change[name]).allclose(parameter)
