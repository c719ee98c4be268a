"""The GPU's head beside the CPU's, through the functions that models call."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaForCausalLM

pytest.importorskip("triton")

from agreement.tiny_models import save_tiny
from assay.models import head
from assay.models.head import TokenScores, head_loss, head_scores
from assay.models.kernels import logits
from assay.models.kernels.logits import score_logits
from no_host_waits import NoHostWaits
from unit.models.kernels.test_logits import DEVICE
from unit.models.kernels.test_logits import pytestmark as pytestmark
from unit.training.methods.test_lines import built, line_of, passed, rows_of

WIDTH, ENTRIES = 8, 37
CHUNK = 4


@pytest.fixture(autouse=True)
def fused(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """Switches between the kernels, which come first, and plain torch code."""
    monkeypatch.setattr(head, "CHUNK_TOKENS", CHUNK)
    monkeypatch.setattr(head, "MIN_CHUNK_TOKENS", 2)

    def switch(is_fused: bool) -> None:
        monkeypatch.setattr(logits, "runs_triton", lambda device: is_fused)

    switch(True)
    return switch


def inputs(num_tokens: int, *, has_bias: bool = False) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    generator = torch.Generator().manual_seed(num_tokens)
    shapes = [(num_tokens, WIDTH), (ENTRIES, WIDTH), (ENTRIES,)]
    states, weight, bias = (torch.randn(s, generator=generator).to(DEVICE).requires_grad_() for s in shapes)
    return (
        states,
        weight,
        bias if has_bias else None,
        torch.randint(ENTRIES, (num_tokens,), generator=generator).to(DEVICE),
    )


def leaves(tensors: tuple[Tensor | None, ...]) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]


def scores_and_gradients(tensors: Any, *, wants_entropies: bool) -> list[Tensor]:
    scores = head_scores(*tensors)
    ramp = torch.linspace(-1, 1, len(scores.logprobs), device=DEVICE)
    total = (scores.logprobs * ramp).sum() + (scores.entropies * ramp.flip(0)).sum() * wants_entropies
    return [*scores, *torch.autograd.grad(total, leaves(tensors))]


# No tokens; fewer than a chunk; exactly one; two with a padded one behind them.
@pytest.mark.parametrize("num_tokens", [0, 3, CHUNK, 2 * CHUNK + 1])
@pytest.mark.parametrize(("has_bias", "wants_entropies"), [(False, True), (True, True), (True, False)])
def test_scores_and_gradients_are_those_of_plain_code(
    num_tokens: int, has_bias: bool, wants_entropies: bool, fused: Callable[[bool], None]
) -> None:
    tensors = inputs(num_tokens, has_bias=has_bias)
    ours = scores_and_gradients(tensors, wants_entropies=wants_entropies)
    fused(False)
    expected = scores_and_gradients(tensors, wants_entropies=wants_entropies)
    # Both add 37 numbers of float32, in different orders; the gradients add up to 37 tokens.
    for fused_one, plain in zip(ours, expected, strict=True):
        torch.testing.assert_close(fused_one, plain, rtol=2e-6, atol=4e-6)


@pytest.mark.parametrize("num_tokens", [0, CHUNK, 2 * CHUNK + 1])
@pytest.mark.parametrize("has_bias", [False, True])
def test_one_pass_has_the_loss_and_gradients_of_two(num_tokens: int, has_bias: bool) -> None:
    tensors = inputs(num_tokens, has_bias=has_bias)
    factors = (torch.arange(num_tokens, device=DEVICE) % 3).float()
    loss, scores = head_loss(*tensors, factors)
    two_pass = head_scores(*tensors)
    expected = -(two_pass.logprobs * factors).sum()
    assert torch.equal(loss, expected) and all(map(torch.equal, scores, two_pass))
    assert not scores.logprobs.requires_grad and not scores.entropies.requires_grad
    for fused_one, two_pass_one in zip(
        torch.autograd.grad(loss / 7, leaves(tensors)), torch.autograd.grad(expected / 7, leaves(tensors)), strict=True
    ):
        torch.testing.assert_close(fused_one, two_pass_one, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["sft", "dpo, normalized", "grpo, several updates"])
def test_methods_have_their_loss_and_gradients(
    name: str, fused: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(head, "CHUNK_TOKENS", 64)
    folders = [str(save_tiny(LlamaForCausalLM, tmp_path / str(seed), seed=seed)) for seed in (1, 2)]
    method, model, frozen = built(name, folders)
    tensors = method.tensors(replace(rows_of(name, [5, 9, 3]), line=line_of(name)), torch.device("cpu"))
    fused(True)
    loss, metrics, gradients = passed(method, model, tensors, frozen)
    fused(False)
    plain_loss, plain_metrics, plain_gradients = passed(method, model, tensors, frozen)
    torch.testing.assert_close(loss, plain_loss, rtol=2e-6, atol=2e-6)
    for key, metric in plain_metrics.items():
        assert float(metrics[key].sum) == pytest.approx(float(metric.sum), rel=1e-5, abs=1e-5), key
    scale = max(float(gradient.abs().max()) for gradient in plain_gradients)
    for ours, plain in zip(gradients, plain_gradients, strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=2e-6 * scale)


def test_without_the_kernels_the_loss_is_that_of_plain_scores(fused: Callable[[bool], None]) -> None:
    fused(False)
    tensors, factors = inputs(9), torch.arange(9.0, device=DEVICE)
    loss, scores = head_loss(*tensors, factors)
    plain = head_scores(*tensors)
    assert torch.equal(loss, -(plain.logprobs * factors).sum()) and torch.equal(scores.entropies, plain.entropies)
    assert loss.requires_grad and not scores.logprobs.requires_grad


def test_a_second_backward_pass_of_the_one_pass_loss_is_refused() -> None:
    loss, _ = head_loss(*inputs(4), torch.ones(4, device=DEVICE))
    loss.backward(retain_graph=True)
    with pytest.raises(AssertionError, match="first backward pass"):
        loss.backward()


def test_frozen_weights_get_no_gradient_and_no_sum() -> None:
    states, weight, _, targets = inputs(5)
    weight.requires_grad_(False)
    head_loss(states, weight, None, targets, torch.ones(5, device=DEVICE))[0].backward()
    head_scores(states, weight, None, targets).logprobs.sum().backward()
    assert weight.grad is None
    assert states.grad is not None


def test_under_autocast_logits_are_bfloat16_and_scores_float32(fused: Callable[[bool], None]) -> None:
    tensors = inputs(2 * CHUNK + 1)
    found: list[list[Tensor]] = []
    for is_fused in (True, False):
        fused(is_fused)
        with torch.autocast(DEVICE, torch.bfloat16):
            found.append(scores_and_gradients(tensors, wants_entropies=True))
    assert [tensor.dtype for tensor in found[0][:2]] == [torch.float32, torch.float32]
    assert [tensor.dtype for tensor in found[0][3:]] == [torch.float32, torch.float32]
    for fused_one, plain in zip(*(tensors[:2] for tensors in found), strict=True):
        # One logit in a hundred is rounded to another neighbour where the products add in another order.
        torch.testing.assert_close(fused_one, plain, rtol=0, atol=2**-6)
    for fused_one, plain in zip(*(tensors[3:] for tensors in found), strict=True):
        difference = (fused_one - plain).norm() / plain.norm()
        assert difference < 2**-7  # gradients of logits are rounded, or under the interpreter cut, to bfloat16


def test_a_tokens_scores_do_not_depend_on_the_number_of_tokens() -> None:
    states, weight, _, targets = inputs(3 * CHUNK)
    whole = head_scores(states, weight, None, targets)
    part = head_scores(states[: CHUNK + 1], weight, None, targets[: CHUNK + 1])
    assert all(torch.equal(fused_one, all_[: CHUNK + 1]) for fused_one, all_ in zip(part, whole, strict=True))


def test_large_vocabularies_have_chunks_of_half_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []
    launch = score_logits
    monkeypatch.setattr(
        head, "score_logits", lambda logits, *args: (shapes.append(logits.shape), launch(logits, *args))
    )
    states, weight, _, targets = inputs(CHUNK + 1)
    head_scores(states, weight, None, targets)
    monkeypatch.setattr(head, "LARGE_VOCABULARY", ENTRIES - 1)
    head_scores(states, weight, None, targets)
    assert shapes == [(CHUNK, ENTRIES)] * 2 + [(CHUNK // 2, ENTRIES)] * 3


def test_the_host_does_not_wait() -> None:
    tensors, factors = inputs(CHUNK + 1, has_bias=True), torch.ones(CHUNK + 1, device=DEVICE)
    with NoHostWaits():
        scores: TokenScores = head_scores(*tensors)
        (scores.logprobs.sum() + scores.entropies.sum()).backward()
        head_loss(*tensors, factors)[0].backward()
