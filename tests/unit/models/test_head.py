"""The head in chunks beside the whole logits, and that nothing so wide is ever made."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from assay.models import head
from assay.models.head import TokenScores, head_scores

WIDTH, ENTRIES = 5, 37


def whole(states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> TokenScores:
    """What autograd makes of the definition."""
    log_chances = torch.nn.functional.linear(states, weight, bias).log_softmax(-1)
    of_targets = log_chances.gather(1, targets[:, None])[:, 0]
    entropies = -(log_chances.exp() * log_chances).sum(-1)
    return TokenScores(of_targets, entropies, log_chances.argmax(-1) == targets)


def inputs(num_tokens: int, *, has_bias: bool, seed: int) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(num_tokens, WIDTH), (ENTRIES, WIDTH), (ENTRIES,)]
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    drawn = [tensor.requires_grad_() for tensor in drawn]
    targets = torch.randint(ENTRIES, (num_tokens,), generator=generator)
    return [drawn[0], drawn[1], drawn[2] if has_bias else None, targets]


@settings(deadline=None)
@given(
    num_tokens=st.integers(0, 12),
    chunk=st.integers(1, 5),
    has_bias=st.booleans(),
    wants_entropies=st.booleans(),
    seed=st.integers(0, 99),
)
def test_scores_and_gradients_are_those_of_whole_logits(
    num_tokens: int, chunk: int, has_bias: bool, wants_entropies: bool, seed: int
) -> None:
    inputs_ = inputs(num_tokens, has_bias=has_bias, seed=seed)
    factors = torch.randn(2, num_tokens, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head, "CHUNK_NUMBERS", {"cpu": chunk * ENTRIES})
        for variant in (head_scores, whole):
            scores = variant(*inputs_)
            total = (scores.logprobs * factors[0]).sum()
            if wants_entropies:
                total = total + (scores.entropies * factors[1]).sum()
            target = [item for item in inputs_[:3] if item is not None]
            found.append([*scores[:2], *torch.autograd.grad(total, target)])
            assert torch.equal(scores.is_argmax, whole(*inputs_).is_argmax)
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


class Largest(TorchDispatchMode):
    """Remembers the most numbers that any operator gave."""

    numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for item in result if isinstance(result, tuple | list) else (result,):
            if isinstance(item, Tensor):
                self.numbers = max(self.numbers, item.numel())
        return result


def test_nothing_as_wide_as_the_vocabulary_is_made_of_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "CHUNK_NUMBERS", {"cpu": 4 * ENTRIES})
    inputs_ = inputs(200, has_bias=False, seed=1)
    with Largest() as largest:
        head_scores(*inputs_).logprobs.sum().backward()
    assert largest.numbers == 200 * WIDTH  # the states; logits would be 7400


def test_under_autocast_the_head_multiplies_in_bfloat16_and_scores_are_float32() -> None:
    states, weight, _, targets = inputs(50, has_bias=False, seed=2)
    states, weight = (item.detach().float().requires_grad_() for item in (states, weight))
    with torch.autocast("cpu", torch.bfloat16):
        rough = head_scores(states, weight, None, targets)
    rough.logprobs.sum().backward()
    exact = whole(states.detach(), weight.detach(), None, targets)
    assert rough.logprobs.dtype == torch.float32
    assert states.grad is not None and states.grad.dtype == torch.float32
    difference = (rough.logprobs - exact.logprobs).abs().max()
    assert 1e-4 < difference < 0.1
