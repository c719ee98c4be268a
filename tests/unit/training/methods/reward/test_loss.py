import math

import pytest
import torch

from assay.training.methods.reward.loss import reward_losses

CHOSEN, REJECTED, MARGINS = [2.0, -1.0, 0.5], [1.0, 1.5, 0.5], [0.0, 0.5, -1.0]


def test_a_pair_loses_by_how_far_its_rewards_fall_short_of_the_margin_and_of_a_mean_of_zero():
    tensors = [torch.tensor(values, dtype=torch.float64) for values in (CHOSEN, REJECTED, MARGINS)]
    expected = [
        math.log1p(math.exp(-(c - r - m))) + 0.1 * (c + r) ** 2
        for c, r, m in zip(CHOSEN, REJECTED, MARGINS, strict=True)
    ]
    assert reward_losses(*tensors, centring=0.1).tolist() == pytest.approx(expected)


def test_a_constant_added_to_all_rewards_matters_to_the_centring_alone():
    chosen, rejected, margins = (torch.tensor(values) for values in (CHOSEN, REJECTED, MARGINS))
    moved = reward_losses(chosen + 3, rejected + 3, margins, centring=0.0)
    torch.testing.assert_close(moved, reward_losses(chosen, rejected, margins, centring=0.0))
    assert (reward_losses(chosen + 3, rejected + 3, margins, centring=0.1) > moved).all()
