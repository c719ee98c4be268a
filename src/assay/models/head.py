"""The head of a language model, computed in chunks of tokens, so that no tensor of tokens x vocabulary is stored.

    states [token, width], W [entry, width]  --chunk by chunk-->  log p(target), entropy, is the target the argmax?
    backward                                 --chunk by chunk-->  logits again, their gradient, the gradient of W

The backward pass needs the states and two numbers for each token. A chunk's logits are freed before the next chunk:
4096 tokens of a vocabulary of 50,000 would take 820 MB, and as much again for their gradient. `kernels.logits` computes
scores and gradients of a chunk's logits, by Triton kernels on a GPU. All products then have the same number of rows,
that of a chunk, because cuBLAS chooses its kernel, and so the bits, by the shape: the last chunk is padded with zeros,
whose gradients are 0.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from assay.base.shapes import Bool, Float, Shaped
from assay.models.causal_config import HEAD_NUMBERS
from assay.models.kernels.logits import (
    Bias,
    LogitScores,
    OfTokens,
    Targets,
    logit_gradients,
    score_and_differentiate,
    score_logits,
    uses_kernel,
)

CHUNK_NUMBERS = {"cpu": HEAD_NUMBERS}
"""Logits of one chunk by device type (see also `distributed.allocator`), without the kernels."""
DEFAULT_CHUNK_NUMBERS = 1 << 27
"""On a GPU: large enough to keep it busy. Changing it changes the bits."""
CHUNK_TOKENS = 4096
"""Tokens of one chunk with the kernels. Changing it changes the bits."""
LARGE_VOCABULARY = 1 << 16
"""Beyond this number of entries a chunk has half the tokens, which still fill a GPU: .6 GB of logits for 152,000."""
MIN_CHUNK_TOKENS = 16


States = Float[Tensor, "token width"]
Weight = Float[Tensor, "entry width"]


class TokenScores(NamedTuple):
    """Scores of target tokens, of one shape; 0 for tokens that are not scored."""

    logprobs: Float[Tensor, "..."]
    """Log-probability of the token, in nats."""
    entropies: Float[Tensor, "..."]
    """Entropy of the predicted distribution, in nats."""
    is_argmax: Bool[Tensor, "..."]
    """True if no other token is more probable."""


def head_scores(states: States, weight: Weight, bias: Bias, targets: Targets) -> TokenScores:
    """Return the scores of the targets; logprobs and entropies have gradients."""
    return TokenScores(*_Head.apply(states, weight, bias, targets, _product_dtype(states)))  # type: ignore[no-untyped-call]


def head_loss(
    states: States, weight: Weight, bias: Bias, targets: Targets, factors: Shaped[Tensor, "token"]
) -> tuple[Float[Tensor, ""], TokenScores]:
    """Return the sum of -factor * logprob, which has gradients, and the scores without gradients.

    On a GPU with Triton the gradients are computed in the forward pass, with three products instead of four: call it
    for losses that are linear in the logprobs, and run backward once.
    """
    dtype = _product_dtype(states)
    if not uses_kernel(states.device, dtype) or not torch.is_grad_enabled():
        scores = head_scores(states, weight, bias, targets)
        return -(scores.logprobs * factors).sum(), TokenScores(*(score.detach() for score in scores))
    loss, *found = _HeadLoss.apply(states, weight, bias, targets, factors.float(), dtype)  # type: ignore[no-untyped-call]
    return loss, TokenScores(*found)


def _product_dtype(states: States) -> torch.dtype:
    kind = states.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype


Gradients = tuple[Float[Tensor, "..."] | None, ...]


class _Head(torch.autograd.Function):
    """Returns logprobs and entropies, which have gradients, and whether targets are the argmax.

    The backward pass computes the logits again.
    """

    @staticmethod
    def forward(
        ctx: Any, states: States, weight: Weight, bias: Bias, targets: Targets, dtype: torch.dtype
    ) -> tuple[OfTokens, OfTokens, Bool[Tensor, "token"]]:
        ctx.set_materialize_grads(False)
        chunks = _Chunks(states, weight, dtype)
        padded_targets, scores = chunks.padded(targets), chunks.empty_scores()
        for rows, logits in chunks.logits():
            score_logits(logits, bias, padded_targets[rows], scores.rows(rows))
        scores = scores.rows(slice(len(targets)))
        ctx.mark_non_differentiable(scores.is_argmax)
        ctx.save_for_backward(states, weight, bias, targets, scores.log_totals, scores.entropies)
        ctx.dtype = dtype
        return scores.logprobs, scores.entropies, scores.is_argmax

    @staticmethod
    def backward(ctx: Any, grad_logprobs: OfTokens | None, grad_entropies: OfTokens | None, _: object) -> Gradients:
        states, weight, bias, targets, log_totals, entropies = ctx.saved_tensors
        grad_logprobs = torch.zeros_like(log_totals) if grad_logprobs is None else grad_logprobs
        chunks = _Chunks(states, weight, ctx.dtype)
        sums = _GradientSums(chunks, weight, bias, ctx.needs_input_grad)
        by_token = [targets, log_totals, entropies, grad_logprobs, grad_entropies]
        padded = [None if values is None else chunks.padded(values) for values in by_token]
        for rows, logits in chunks.logits():
            of_rows = [None if values is None else values[rows] for values in padded]
            sums.add(rows, logit_gradients(logits, bias, *of_rows))  # type: ignore[arg-type]
        return (*sums.gradients(), None, None)


class _HeadLoss(torch.autograd.Function):
    """Returns sum(-factor * logprob) and the scores, of which only the loss has gradients.

    The gradients are computed in the forward pass, from the same logits: three products instead of four. The backward
    pass multiplies them by the loss's gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, states: States, weight: Weight, bias: Bias, targets: Targets, factors: OfTokens, dtype: torch.dtype
    ) -> tuple[Float[Tensor, ""], OfTokens, OfTokens, Bool[Tensor, "token"]]:
        chunks = _Chunks(states, weight, dtype)
        sums = _GradientSums(chunks, weight, bias, ctx.needs_input_grad)
        padded_targets, grad_logprobs = chunks.padded(targets), chunks.padded(-factors)
        scores = chunks.empty_scores()
        for rows, logits in chunks.logits():
            score_and_differentiate(logits, bias, padded_targets[rows], scores.rows(rows), grad_logprobs[rows])
            sums.add(rows, logits)
        logprobs, entropies, is_argmax, _ = scores.rows(slice(len(targets)))
        ctx.gradients = sums.gradients()
        ctx.mark_non_differentiable(logprobs, entropies, is_argmax)
        return -(logprobs * factors).sum(), logprobs, entropies, is_argmax

    @staticmethod
    def backward(ctx: Any, grad_loss: Float[Tensor, ""], *_: object) -> Gradients:
        gradients, ctx.gradients = ctx.gradients, None
        assert gradients is not None, "a first backward pass has scaled the gradients in place"
        return (*(None if gradient is None else gradient.mul_(grad_loss) for gradient in gradients), None, None, None)


class _Chunks:
    """Cuts tokens into chunks and multiplies their states by the head's weight."""

    def __init__(self, states: States, weight: Weight, dtype: torch.dtype) -> None:
        self.num_tokens = self._num_padded = len(states)
        self.has_kernel = uses_kernel(states.device, dtype)
        if self.has_kernel:
            largest = CHUNK_TOKENS // 2 if len(weight) > LARGE_VOCABULARY else CHUNK_TOKENS
            self._size = min(largest, max(MIN_CHUNK_TOKENS, 1 << (len(states) - 1).bit_length()))
            self._num_padded = -(-len(states) // self._size) * self._size
        else:
            self._size = max(1, CHUNK_NUMBERS.get(states.device.type, DEFAULT_CHUNK_NUMBERS) // len(weight))
        self.states_dtype = states.dtype
        self.states, self.head = self.padded(states.to(dtype)), weight.to(dtype)

    def padded(self, values: Shaped[Tensor, "token ..."]) -> Shaped[Tensor, "padded ..."]:
        """Return the values with zeros for the tokens that the last chunk lacks."""
        missing = self._num_padded - len(values)
        return torch.cat([values, values.new_zeros(missing, *values.shape[1:])]) if missing else values.contiguous()

    def empty_scores(self) -> LogitScores:
        """Return memory for the scores of all chunks, at least in float32."""
        stored_dtype = torch.promote_types(self.states.dtype, torch.float32)
        return LogitScores.empty(self._num_padded, self.states.device, stored_dtype)

    def logits(self) -> Iterator[tuple[slice, Float[Tensor, "chunk entry"]]]:
        """Yield each chunk's tokens and their logits, in newly allocated memory."""
        for start in range(0, self._num_padded, self._size):
            rows = slice(start, start + self._size)
            with torch.autocast(self.states.device.type, enabled=False):
                logits = self.states[rows] @ self.head.T
            yield rows, logits


class _GradientSums:
    """Gradients of states, weight and bias from those of the logits, added over the chunks in order."""

    def __init__(self, chunks: _Chunks, weight: Weight, bias: Bias, needs_gradients: tuple[bool, ...]) -> None:
        self._chunks = chunks
        self._sources = (weight, bias)
        self._states = torch.empty_like(chunks.states, dtype=chunks.states_dtype)
        self._weight, self._bias = (
            torch.zeros_like(source, dtype=torch.float32 if chunks.has_kernel else None)
            if source is not None and is_needed
            else None
            for source, is_needed in zip(self._sources, needs_gradients[1:3], strict=True)
        )

    def add(self, rows: slice, grad_logits: Float[Tensor, "chunk entry"]) -> None:
        chunks = self._chunks
        with torch.autocast(grad_logits.device.type, enabled=False):
            if self._bias is not None:
                self._bias += grad_logits.sum(dim=0, dtype=torch.promote_types(grad_logits.dtype, torch.float32))
            grad_logits = grad_logits.to(chunks.head.dtype)
            self._states[rows] = (grad_logits @ chunks.head).to(chunks.states_dtype)
            if self._weight is not None:
                self._weight += grad_logits.T @ chunks.states[rows]

    def gradients(self) -> Gradients:
        sums = zip((self._weight, self._bias), self._sources, strict=True)
        others = (None if found is None or source is None else found.to(source.dtype) for found, source in sums)
        return (self._states[: self._chunks.num_tokens], *others)
