"""Each loss at points where anybody can compute it by hand, and where its gradient points."""

import math

import pytest
import torch

from assay.training.methods.dpo.config import IpoLoss, RobustLoss, SigmoidLoss
from assay.training.methods.dpo.loss import pair_losses

POINTS = [-3.0, -0.5, 0.0, 0.5, 3.0]


def surprise(logit: float) -> float:
    """-log sigmoid."""
    return math.log1p(math.exp(-logit))


def losses(config: SigmoidLoss | RobustLoss | IpoLoss) -> list[float]:
    return pair_losses(torch.tensor(POINTS, dtype=torch.float64), config).tolist()


def slope(config: SigmoidLoss | RobustLoss | IpoLoss, difference: float) -> float:
    at = torch.tensor([difference], dtype=torch.float64, requires_grad=True)
    pair_losses(at, config).sum().backward()
    assert at.grad is not None
    return float(at.grad)


def test_sigmoid_is_the_surprise_at_the_preference():
    assert losses(SigmoidLoss(beta=0.4)) == pytest.approx([surprise(0.4 * d) for d in POINTS])


def test_conservative_smoothing_is_least_where_the_model_is_as_sure_as_the_labels():
    config = SigmoidLoss(beta=0.5, label_smoothing=0.2)
    expected = [0.8 * surprise(0.5 * d) + 0.2 * surprise(-0.5 * d) for d in POINTS]
    assert losses(config) == pytest.approx(expected)
    best = math.log(0.8 / 0.2) / 0.5
    assert slope(config, best) == pytest.approx(0.0, abs=1e-12)
    assert slope(config, best - 0.1) < 0 < slope(config, best + 0.1)


def test_the_robust_loss_over_flipped_labels_is_the_sigmoid_loss_on_right_ones():
    share = 0.3
    config = RobustLoss(type="robust", beta=0.7, label_smoothing=share)
    right, flipped = losses(config), losses(config)[::-1]  # the points are their own mirror image
    mean = [(1 - share) * one + share * other for one, other in zip(right, flipped, strict=True)]
    assert mean == pytest.approx(losses(SigmoidLoss(beta=0.7)))


def test_ipo_asks_for_a_preference_of_half_of_one_over_beta_and_no_more():
    config = IpoLoss(type="ipo", beta=0.25)
    assert losses(config) == pytest.approx([(d - 2) ** 2 for d in POINTS])
    assert slope(config, 2.0) == 0.0 and slope(config, 3.0) > 0
