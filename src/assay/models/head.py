"""The head of a language model, computed in chunks of tokens, so that no tensor of tokens x vocabulary is stored.

    states [token, width], W [entry, width]  --chunk by chunk-->  log p(target), entropy, is the target the argmax?
    backward                                 --chunk by chunk-->  logits again, their gradient, the gradient of W

The backward pass needs the states and two numbers for each token. A chunk's logits are freed before the next chunk:
4096 tokens of a vocabulary of 50,000 would take 820 MB, and as much again for their gradient. On a GPU with Triton,
`kernels.fused_head` computes the same from logits in the autocast type.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from assay.base.shapes import Bool, Float, Int, Shaped
from assay.models.causal_config import HEAD_NUMBERS
from assay.models.determinism import distinct_writes
from assay.models.kernels.triton_use import runs_triton

CHUNK_NUMBERS = {"cpu": HEAD_NUMBERS}
"""Logits of one chunk by device type (see also `distributed.allocator`)."""
DEFAULT_CHUNK_NUMBERS = 1 << 27
"""On a GPU: large enough to keep it busy. Changing it changes the bits."""


class TokenScores(NamedTuple):
    """Scores of target tokens, of one shape; 0 for tokens that are not scored."""

    logprobs: Float[Tensor, "..."]
    """Log-probability of the token, in nats."""
    entropies: Float[Tensor, "..."]
    """Entropy of the predicted distribution, in nats."""
    is_argmax: Bool[Tensor, "..."]
    """True if no other token is more probable."""


def head_scores(
    states: Float[Tensor, "token width"],
    weight: Float[Tensor, "entry width"],
    bias: Float[Tensor, "entry"] | None,
    targets: Int[Tensor, "token"],
) -> TokenScores:
    """Return the scores of the targets; logprobs and entropies have gradients."""
    dtype = _product_dtype(states)
    head: type[torch.autograd.Function] = _Head
    if _is_fused(states, dtype):
        from assay.models.kernels import fused_head  # imports triton

        head = fused_head.FusedHead
    scores: TokenScores = head.apply(states, weight, bias, targets, dtype)  # type: ignore[no-untyped-call]
    return TokenScores(*scores)


def head_loss(
    states: Float[Tensor, "token width"],
    weight: Float[Tensor, "entry width"],
    bias: Float[Tensor, "entry"] | None,
    targets: Int[Tensor, "token"],
    factors: Shaped[Tensor, "token"],
) -> tuple[Float[Tensor, ""], TokenScores]:
    """Return the sum of -factor * logprob, which has gradients, and the scores without gradients.

    On a GPU with Triton the gradients are computed in the forward pass, with three products instead of four: call it
    for losses that are linear in the logprobs, and run backward once.
    """
    dtype = _product_dtype(states)
    if not _is_fused(states, dtype) or not torch.is_grad_enabled():
        scores = head_scores(states, weight, bias, targets)
        return -(scores.logprobs * factors).sum(), TokenScores(*(score.detach() for score in scores))
    from assay.models.kernels.fused_head import FusedHeadLoss  # imports triton

    loss, *found = FusedHeadLoss.apply(states, weight, bias, targets, factors.float(), dtype)  # type: ignore[no-untyped-call]
    return loss, TokenScores(*found)


def _is_fused(states: Float[Tensor, "token width"], dtype: torch.dtype) -> bool:
    """Return True if the kernels compute the head; they add in float32."""
    return dtype != torch.float64 and runs_triton(states.device)


def _product_dtype(states: Float[Tensor, "token width"]) -> torch.dtype:
    kind = states.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Float[Tensor, "token width"],
        weight: Float[Tensor, "entry width"],
        bias: Float[Tensor, "entry"] | None,
        targets: Int[Tensor, "token"],
        dtype: torch.dtype,
    ) -> tuple[Float[Tensor, "token"], Float[Tensor, "token"], Bool[Tensor, "token"]]:
        ctx.set_materialize_grads(False)
        stored_dtype = torch.promote_types(dtype, torch.float32)
        logprobs, entropies, log_totals = (
            torch.empty(len(targets), dtype=stored_dtype, device=states.device) for _ in range(3)
        )
        is_argmax = torch.empty_like(targets, dtype=torch.bool)
        head = weight.to(dtype)
        for rows in _chunks(states, weight):
            logits = _logits(states[rows], head, bias)
            highest = logits.amax(dim=-1)
            target_logits = logits.gather(1, targets[rows, None])[:, 0]
            is_argmax[rows] = target_logits == highest
            logits -= highest[:, None]
            probabilities = logits.exp()
            totals = probabilities.sum(dim=-1)
            mean = torch.linalg.vecdot(probabilities, logits) / totals
            log_totals[rows] = totals.log() + highest
            logprobs[rows] = target_logits - log_totals[rows]
            entropies[rows] = totals.log() - mean
        ctx.mark_non_differentiable(is_argmax)
        ctx.save_for_backward(states, weight, bias, targets, log_totals, entropies)
        ctx.dtype = dtype
        return logprobs, entropies, is_argmax

    @staticmethod
    def backward(
        ctx: Any,
        grad_logprobs: Float[Tensor, "token"] | None,
        grad_entropies: Float[Tensor, "token"] | None,
        _: object,
    ) -> tuple[Float[Tensor, "..."] | None, ...]:
        states, weight, bias, targets, log_totals, entropies = ctx.saved_tensors
        if grad_logprobs is None:
            grad_logprobs = torch.zeros_like(log_totals)
        grad_states = torch.empty_like(states)
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        head = weight.to(ctx.dtype)
        for rows in _chunks(states, weight):
            # d log p(target) = [entry is target] - p;  d entropy = -p (log p + entropy)
            grad_logits = _logits(states[rows], head, bias)
            grad_logits -= log_totals[rows, None]
            factor = -grad_logprobs[rows, None]
            if grad_entropies is not None:
                factor = factor - grad_entropies[rows, None] * (grad_logits + entropies[rows, None])
            grad_logits = grad_logits.exp_().mul_(factor)
            with distinct_writes():
                grad_logits.scatter_add_(1, targets[rows, None], grad_logprobs[rows, None])
            if grad_bias is not None:
                grad_bias += grad_logits.sum(dim=0)
            grad_logits = grad_logits.to(ctx.dtype)
            grad_states[rows] = (grad_logits @ head).to(states.dtype)
            if grad_weight is not None:
                grad_weight += grad_logits.T @ states[rows].to(ctx.dtype)
        return grad_states, grad_weight, grad_bias, None, None


def _chunks(states: Float[Tensor, "token width"], weight: Float[Tensor, "entry width"]) -> list[slice]:
    """Return slices of tokens whose logits are computed together."""
    size = max(1, CHUNK_NUMBERS.get(states.device.type, DEFAULT_CHUNK_NUMBERS) // len(weight))
    return [slice(start, start + size) for start in range(0, len(states), size)]


def _logits(
    states: Float[Tensor, "token width"],
    head: Float[Tensor, "entry width"],
    bias: Float[Tensor, "entry"] | None,
) -> Float[Tensor, "token entry"]:
    """Return the logits in newly allocated memory, at least in float32."""
    with torch.autocast(states.device.type, enabled=False):
        logits = states.to(head.dtype) @ head.T
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits if bias is None else logits + bias
