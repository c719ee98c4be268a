"""Each loss at points where anybody can compute it by hand, and where its gradient points."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from assay.training.methods.grpo.config import (
    AnyLoss,
    BnpoLoss,
    CispoLoss,
    DapoLoss,
    DrGrpoLoss,
    GrpoLoss,
    GspoLoss,
)
from assay.training.methods.grpo.loss import (
    divergences,
    group_advantages,
    policy_loss,
    reduced_loss,
)
from assay.training.methods.grpo.outcomes import overlong_penalties

TRAINED = torch.tensor([[True, True, True, True], [True, False, False, False]])
"""An answer of four tokens, and one of one."""
ADVANTAGES = torch.tensor([1.0, -2.0], dtype=torch.float64)
MAX_TOKENS = 8


def at(*ratios: list[float]) -> tuple[Tensor, Tensor]:
    """Log-probabilities of tokens whose ratios these are, and those that drew them."""
    old = torch.tensor([[-1.0, -0.5, -2.0, -0.1], [-3.0, -1.0, -1.0, -1.0]], dtype=torch.float64)
    return (old + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_(), old


def loss_at(loss: AnyLoss, *ratios: list[float]) -> tuple[float, list[list[float]]]:
    """The sum, and its slope at each token's log-probability."""
    logprobs, old = at(*ratios)
    token_losses = policy_loss(logprobs, old, ADVANTAGES, TRAINED, loss)[0]
    total = reduced_loss(token_losses, TRAINED, loss, max_tokens=MAX_TOKENS)
    total.backward()
    assert logprobs.grad is not None
    return float(total.detach()), logprobs.grad.tolist()


ONES = [1.0] * 4


@pytest.mark.parametrize(
    ("loss", "expected", "slopes"),
    [
        (DapoLoss(), -4 + 2, (-1, 2)),
        (BnpoLoss(type="bnpo"), -4 + 2, (-1, 2)),
        (GrpoLoss(type="grpo"), -1 + 2, (-1 / 4, 2)),
        (DrGrpoLoss(type="dr_grpo"), (-4 + 2) / 8, (-1 / 8, 2 / 8)),
        (GspoLoss(type="gspo"), -1 + 2, (-1 / 4, 2)),
    ],
)
def test_where_the_policy_drew_them_answers_lose_their_advantage_over_what_the_mean_is_over(
    loss: AnyLoss, expected: float, slopes: tuple[float, float]
) -> None:
    found, slope = loss_at(loss, ONES, ONES)
    assert found == pytest.approx(expected)
    assert slope[0] == pytest.approx([slopes[0]] * 4) and slope[1] == pytest.approx([slopes[1], 0, 0, 0])


def test_cispo_has_the_slope_of_the_others_and_a_value_of_its_own() -> None:
    found, slope = loss_at(CispoLoss(type="cispo"), ONES, ONES)
    assert found == pytest.approx(1.0 + 0.5 + 2.0 + 0.1 - 2 * 3.0)
    assert slope[0] == pytest.approx([-1.0] * 4) and slope[1] == pytest.approx([2.0, 0, 0, 0])


def test_a_ratio_beyond_the_clip_teaches_nothing_on_the_side_where_it_was_wanted() -> None:
    loss = DapoLoss(clip_low=0.2, clip_high=0.3)
    found, slope = loss_at(loss, [1.5, 1.25, 0.7, 0.9], [0.5, 1.0, 1.0, 1.0])
    assert found == pytest.approx(-(1.3 + 1.25 + 0.7 + 0.9) + 2 * 0.8)
    # Rising, where the advantage is positive, stops; falling does not: there it is still to be mended.
    assert slope == [pytest.approx([0.0, -1.25, -0.7, -0.9]), pytest.approx([0.0] * 4)]
    _, slope = loss_at(loss, ONES, [1.5, 1.0, 1.0, 1.0])
    assert slope[1] == pytest.approx([3.0, 0, 0, 0])


def test_gspo_clips_an_answer_by_the_geometric_mean_of_its_ratios() -> None:
    loss, ratios = GspoLoss(type="gspo", clip_low=0.2, clip_high=0.2), [2.0, 0.5, 1.2, 1.2]
    mean = math.prod(ratios) ** (1 / 4)
    found, slope = loss_at(loss, ratios, [0.9, 7.0, 7.0, 7.0])
    assert found == pytest.approx(-mean + 2 * 0.9), "what is no answer has no part in the mean"
    assert slope[0] == pytest.approx([-mean / 4] * 4)
    found, slope = loss_at(loss, [1.5] * 4, ONES)
    assert found == pytest.approx(-1.2 + 2) and slope[0] == pytest.approx([0.0] * 4)


def test_cispo_weighs_by_the_ratio_and_silences_no_token() -> None:
    _, slope = loss_at(CispoLoss(type="cispo", max_ratio=2.0), [5.0, 1.5, 0.1, 1.0], ONES)
    assert slope[0] == pytest.approx([-2.0, -1.5, -0.1, -1.0])


def test_what_is_clipped_is_said() -> None:
    def clipped(loss: AnyLoss, *ratios: list[float]) -> Any:
        logprobs, old = at(*ratios)
        return policy_loss(logprobs, old, ADVANTAGES, TRAINED, loss)[1].tolist()

    ratios = [1.5, 1.1, 0.5, 0.9], [0.5, 1.5, 1.0, 1.0]
    assert clipped(DapoLoss(), *ratios) == [[True, False, False, False], [True, False, False, False]]
    assert clipped(CispoLoss(type="cispo", max_ratio=1.2), *ratios)[0] == [True, False, False, False]


@given(st.lists(st.floats(-6, 0), min_size=1, max_size=6), st.lists(st.floats(-6, 0), min_size=6, max_size=6))
def test_a_divergence_is_never_negative_and_nothing_between_equals(own: list[float], other: list[float]) -> None:
    logprobs, reference = (torch.tensor([row[: len(own)]], dtype=torch.float64) for row in (own, other))
    assert (divergences(logprobs, reference, reference) >= -1e-12).all()
    assert (divergences(logprobs, reference, logprobs) == 0).all()


def test_over_what_anybody_draws_the_mean_divergence_and_its_slope_are_those_of_the_policy() -> None:
    logits = torch.tensor([0.4, -1.0, 0.3], dtype=torch.float64, requires_grad=True)
    old, reference = (torch.tensor(row, dtype=torch.float64) for row in ([0.2, 0.5, 0.3], [0.3, 0.3, 0.4]))
    own = logits.log_softmax(0)
    (expected,) = torch.autograd.grad((own.exp() * (own - reference.log())).sum(), logits, retain_graph=True)
    for drawn in (old, own.detach().exp()):
        message = divergences(own[None], drawn.log()[None], reference.log()[None])[0]
        (found,) = torch.autograd.grad((drawn * message).sum(), logits, retain_graph=True)
        torch.testing.assert_close(found, expected)


rewards = arrays(np.float64, st.integers(2, 9), elements=st.floats(-3, 3, width=16))


@given(rewards)
def test_advantages_are_centred_and_of_spread_one_or_nothing(earned: np.ndarray) -> None:
    scaled, plain = (group_advantages(earned, by_deviation=by) for by in (True, False))
    np.testing.assert_allclose(plain, earned - earned.mean(), atol=1e-6)
    if (earned == earned[0]).all():
        assert not scaled.any() and not plain.any()
    else:
        assert scaled.mean() == pytest.approx(0, abs=1e-5) and scaled.std() == pytest.approx(1, rel=1e-4)


@given(rewards, st.data())
def test_a_failed_grade_leaves_its_group_as_if_it_had_never_been_there(earned: np.ndarray, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(earned)))
    with_failure = np.insert(earned, index, np.nan)
    found = group_advantages(with_failure, by_deviation=True)
    assert np.isnan(found[index])
    np.testing.assert_array_equal(np.delete(found, index), group_advantages(earned, by_deviation=True))


def test_a_group_that_nobody_could_grade_has_no_advantages() -> None:
    assert np.isnan(group_advantages(np.full(3, np.nan), by_deviation=True)).all()


def test_an_overlong_answer_pays_for_the_tokens_that_it_has_in_the_buffer() -> None:
    found = overlong_penalties(np.array([1, 6, 8, 10]), max_tokens=10, buffer_tokens=4, penalty=2.0)
    assert found.tolist() == [0.0, 0.0, 1.0, 2.0]
