"""The head of a language model on a GPU: products by cuBLAS in the autocast type, all else by Triton kernels.

    states [token, width] --product--> logits [chunk, entry] --one read--> scores
                                       gradient, in place    <--one pass--

All products have the same number of rows, that of a chunk, because cuBLAS chooses its kernel, and so the bits, by the
shape. The last chunk is padded with zeros, whose gradients are 0. For the definitions see `kernels.logits`.
"""

from collections.abc import Iterator
from typing import Any

import torch
import triton
from torch import Tensor

from assay.base.shapes import Bool, Float, Float32, Int64, Shaped
from assay.models.kernels.logits import LogitScores, replace_by_gradient, score_and_replace, score_logits

CHUNK_TOKENS = 4096
"""Tokens whose logits are computed together. Changing it changes the bits."""
LARGE_VOCABULARY = 1 << 16
"""Beyond this number of entries a chunk has half the tokens, which still fill a GPU: .6 GB of logits for 152,000."""
MIN_CHUNK_TOKENS = 16

Scores = tuple[Float32[Tensor, "token"], Float32[Tensor, "token"], Bool[Tensor, "token"]]
"""Logprobs and entropies in nats, and whether the target is the argmax."""
Gradients = tuple[Float[Tensor, "token width"], Float[Tensor, "entry width"] | None, Float[Tensor, "entry"] | None]


class FusedHead(torch.autograd.Function):
    """Returns `Scores`; logprobs and entropies have gradients. The backward pass computes the logits again."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Float[Tensor, "token width"],
        weight: Float[Tensor, "entry width"],
        bias: Float[Tensor, "entry"] | None,
        targets: Int64[Tensor, "token"],
        dtype: torch.dtype,
    ) -> Scores:
        ctx.set_materialize_grads(False)
        chunks = _Chunks(states, weight, dtype)
        padded_targets, scores = chunks.padded(targets), LogitScores.empty(chunks.num_padded, states.device)
        for rows, logits in chunks.logits():
            score_logits(logits, bias, padded_targets[rows], scores.rows(rows))
        scores = scores.rows(slice(len(targets)))
        ctx.mark_non_differentiable(scores.is_argmax)
        ctx.save_for_backward(states, weight, bias, targets, *scores)
        ctx.dtype = dtype
        return scores.logprobs, scores.entropies, scores.is_argmax

    @staticmethod
    def backward(
        ctx: Any,
        grad_logprobs: Float32[Tensor, "token"] | None,
        grad_entropies: Float32[Tensor, "token"] | None,
        _: object,
    ) -> tuple[Float[Tensor, "..."] | None, ...]:
        states, weight, bias, targets, *scores = ctx.saved_tensors
        grad_logprobs = torch.zeros_like(scores[0]) if grad_logprobs is None else grad_logprobs
        chunks = _Chunks(states, weight, ctx.dtype)
        sums = _GradientSums(chunks, bias, ctx.needs_input_grad)
        targets, grad_logprobs = chunks.padded(targets), chunks.padded(grad_logprobs)
        padded_entropies = None if grad_entropies is None else chunks.padded(grad_entropies)
        padded_scores = LogitScores(*map(chunks.padded, scores))
        for rows, logits in chunks.logits():
            entropies = None if padded_entropies is None else padded_entropies[rows]
            replace_by_gradient(logits, bias, targets[rows], padded_scores.rows(rows), grad_logprobs[rows], entropies)
            sums.add(rows, logits)
        return (*sums.gradients(), None, None)


class FusedHeadLoss(torch.autograd.Function):
    """Returns sum(-factor * logprob) and `Scores`, of which only the loss has gradients.

    The gradients are computed in the forward pass, from the same logits: three products instead of four. The backward
    pass multiplies them by the loss's gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Float[Tensor, "token width"],
        weight: Float[Tensor, "entry width"],
        bias: Float[Tensor, "entry"] | None,
        targets: Int64[Tensor, "token"],
        factors: Float32[Tensor, "token"],
        dtype: torch.dtype,
    ) -> tuple[Float32[Tensor, ""], *Scores]:
        chunks = _Chunks(states, weight, dtype)
        sums = _GradientSums(chunks, bias, ctx.needs_input_grad)
        padded_targets, grad_logprobs = chunks.padded(targets), chunks.padded(-factors)
        scores = LogitScores.empty(chunks.num_padded, states.device)
        for rows, logits in chunks.logits():
            score_and_replace(logits, bias, padded_targets[rows], scores.rows(rows), grad_logprobs[rows])
            sums.add(rows, logits)
        scores = scores.rows(slice(len(targets)))
        ctx.gradients = sums.gradients()
        ctx.mark_non_differentiable(scores.logprobs, scores.entropies, scores.is_argmax)
        return -(scores.logprobs * factors).sum(), scores.logprobs, scores.entropies, scores.is_argmax

    @staticmethod
    def backward(ctx: Any, grad_loss: Float32[Tensor, ""], *_: object) -> tuple[Float[Tensor, "..."] | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        assert gradients is not None, "a first backward pass has scaled the gradients in place"
        return (*(None if gradient is None else gradient.mul_(grad_loss) for gradient in gradients), None, None, None)


class _Chunks:
    """Cuts tokens into equal chunks and multiplies their states by the head's weight."""

    def __init__(
        self, states: Float[Tensor, "token width"], weight: Float[Tensor, "entry width"], dtype: torch.dtype
    ) -> None:
        largest = CHUNK_TOKENS // 2 if len(weight) > LARGE_VOCABULARY else CHUNK_TOKENS
        self._size = min(largest, max(MIN_CHUNK_TOKENS, triton.next_power_of_2(len(states))))
        self.num_tokens = len(states)
        self.num_padded = triton.cdiv(len(states), self._size) * self._size
        self.types = states.dtype, weight.dtype
        self.states, self.head = self.padded(states.to(dtype)), weight.to(dtype)

    def padded(self, values: Shaped[Tensor, "token ..."]) -> Shaped[Tensor, "padded ..."]:
        """Return the values with zeros for the tokens that the last chunk lacks."""
        missing = self.num_padded - len(values)
        return torch.cat([values, values.new_zeros(missing, *values.shape[1:])]) if missing else values.contiguous()

    def logits(self) -> Iterator[tuple[slice, Float[Tensor, "chunk entry"]]]:
        """Yield each chunk's tokens and their logits, in newly allocated memory."""
        for start in range(0, self.num_padded, self._size):
            rows = slice(start, start + self._size)
            with torch.autocast(self.states.device.type, enabled=False):
                logits = self.states[rows] @ self.head.T
            yield rows, logits


class _GradientSums:
    """Gradients of states, weight and bias, from those of the logits; float32 sums over the chunks, in order."""

    def __init__(self, chunks: _Chunks, bias: Float[Tensor, "entry"] | None, needs_gradients: tuple[bool, ...]) -> None:
        self._chunks, self._bias = chunks, bias
        states_dtype, _ = chunks.types
        self._states = torch.empty_like(chunks.states, dtype=states_dtype)
        self._weight = torch.zeros_like(chunks.head, dtype=torch.float32) if needs_gradients[1] else None
        has_bias = bias is not None and needs_gradients[2]
        self._bias_sum = torch.zeros_like(bias, dtype=torch.float32) if has_bias and bias is not None else None

    def add(self, rows: slice, grad_logits: Float[Tensor, "chunk entry"]) -> None:
        with torch.autocast(grad_logits.device.type, enabled=False):
            self._states[rows] = grad_logits @ self._chunks.head
            if self._weight is not None:
                self._weight += grad_logits.T @ self._chunks.states[rows]
            if self._bias_sum is not None:
                self._bias_sum += grad_logits.sum(dim=0, dtype=torch.float32)

    def gradients(self) -> Gradients:
        _, weight_dtype = self._chunks.types
        return (
            self._states[: self._chunks.num_tokens],
            None if self._weight is None else self._weight.to(weight_dtype),
            None if self._bias is None or self._bias_sum is None else self._bias_sum.to(self._bias.dtype),
        )
