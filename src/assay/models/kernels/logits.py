"""Triton kernels over the logits of a chunk of tokens: scores in one read, and the gradient in place of the logits.

A program computes one token's row and nothing else, in blocks of entries from the first to the last, in float32. So a
row's bits depend neither on the other rows nor on their number, and nothing is added in an order of arrival.

With logits x, a block updates the maximum m and two sums relative to it (Milakov and Gimelshein 2018, "Online
normalizer calculation for softmax", with a second sum for the entropy):

    s = sum exp(x - m)            a new maximum m': s' = s exp(m - m')
    t = sum (x - m) exp(x - m)                      t' = (t + (m - m') s) exp(m - m')

    log p(target) = x[target] - m - log s           d / dx = [entry is target] - p
    entropy       = log s - t / s                   d / dx = -p (log p + entropy)
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from assay.base.shapes import Bool, Float, Float32, Int64

MAX_BLOCK = 4096
"""Entries that a program holds at once: 16 for each of the 256 threads of 8 warps."""


class LogitScores(NamedTuple):
    """What a chunk's logits say of its targets, one entry for each token."""

    logprobs: Float32[Tensor, "token"]
    entropies: Float32[Tensor, "token"]
    is_argmax: Bool[Tensor, "token"]
    log_totals: Float32[Tensor, "token"]
    """Logarithm of the sum of exp(logit)."""

    @classmethod
    def empty(cls, num_tokens: int, device: torch.device) -> "LogitScores":
        """Return memory for the kernels to write."""
        logprobs, entropies, log_totals = torch.empty(3, num_tokens, dtype=torch.float32, device=device)
        return cls(logprobs, entropies, torch.empty(num_tokens, dtype=torch.bool, device=device), log_totals)

    def rows(self, rows: slice) -> "LogitScores":
        """Return views of some tokens' scores."""
        return LogitScores(*(score[rows] for score in self))


def score_logits(
    logits: Float[Tensor, "token entry"],
    bias: Float[Tensor, "entry"] | None,
    targets: Int64[Tensor, "token"],
    scores: LogitScores,
) -> None:
    """Write the targets' scores; `bias` is added to the logits in float32."""
    _launch(_score_kernel, logits, bias, targets, *scores)


def replace_by_gradient(
    logits: Float[Tensor, "token entry"],
    bias: Float[Tensor, "entry"] | None,
    targets: Int64[Tensor, "token"],
    scores: LogitScores,
    grad_logprobs: Float32[Tensor, "token"],
    grad_entropies: Float32[Tensor, "token"] | None,
) -> None:
    """Write the gradient of the logits over them, given those of the scores; 0 in rows whose gradients are 0."""
    _launch(
        _gradient_kernel,
        logits,
        bias,
        targets,
        scores.log_totals,
        scores.entropies,
        grad_logprobs,
        grad_logprobs if grad_entropies is None else grad_entropies,
        HAS_ENTROPIES=grad_entropies is not None,
    )


def score_and_replace(
    logits: Float[Tensor, "token entry"],
    bias: Float[Tensor, "entry"] | None,
    targets: Int64[Tensor, "token"],
    scores: LogitScores,
    grad_logprobs: Float32[Tensor, "token"],
) -> None:
    """Write the targets' scores, and over the logits their gradient given that of the logprobs, in one launch."""
    _launch(_score_and_gradient_kernel, logits, bias, targets, *scores, grad_logprobs)


def _launch(
    kernel: Any,
    logits: Float[Tensor, "token entry"],
    bias: Float[Tensor, "entry"] | None,
    *tensors: Tensor,
    **flags: bool,
) -> None:
    """Start one program for each row of contiguous logits; where there is no bias, its pointer is never read."""
    num_tokens, num_entries = logits.shape
    assert all(tensor.is_contiguous() for tensor in (logits, *tensors)), [tensor.stride() for tensor in tensors]
    if num_tokens:
        kernel[(num_tokens,)](
            logits,
            logits if bias is None else bias,
            *tensors,
            num_entries=num_entries,
            HAS_BIAS=bias is not None,
            BLOCK=min(MAX_BLOCK, triton.next_power_of_2(num_entries)),
            num_warps=8,
            enable_fp_fusion=False,  # so that both numbers of launches round alike
            **flags,
        )


@triton.jit
def _score_kernel(
    logits,
    bias,
    targets,
    logprobs,
    entropies,
    is_argmax,
    log_totals,
    num_entries,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    _score_row(
        logits + row * num_entries,
        bias,
        target,
        logprobs + row,
        entropies + row,
        is_argmax + row,
        log_totals + row,
        num_entries,
        HAS_BIAS,
        BLOCK,
    )


@triton.jit
def _gradient_kernel(
    logits,
    bias,
    targets,
    log_totals,
    entropies,
    grad_logprobs,
    grad_entropies,
    num_entries,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_ENTROPIES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    _replace_row(
        logits + row * num_entries,
        bias,
        tl.load(targets + row),
        tl.load(log_totals + row),
        tl.load(entropies + row),
        tl.load(grad_logprobs + row),
        tl.load(grad_entropies + row),
        num_entries,
        HAS_BIAS,
        BLOCK,
        HAS_ENTROPIES,
    )


@triton.jit
def _score_and_gradient_kernel(
    logits,
    bias,
    targets,
    logprobs,
    entropies,
    is_argmax,
    log_totals,
    grad_logprobs,
    num_entries,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    log_total = _score_row(
        logits + row * num_entries,
        bias,
        target,
        logprobs + row,
        entropies + row,
        is_argmax + row,
        log_totals + row,
        num_entries,
        HAS_BIAS,
        BLOCK,
    )
    tl.debug_barrier()  # all threads have read the target's logit before one of them writes over it
    _replace_row(
        logits + row * num_entries,
        bias,
        target,
        log_total,
        0.0,
        tl.load(grad_logprobs + row),
        0.0,
        num_entries,
        HAS_BIAS,
        BLOCK,
        False,
    )


@triton.jit
def _score_row(
    logits,
    bias,
    target,
    logprob,
    entropy,
    is_argmax,
    log_total,
    num_entries,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store the scores of one row; return the logarithm of its total."""
    target_logit = _load_entry(logits, bias, target, HAS_BIAS)
    highest = _load_entry(logits, bias, 0, HAS_BIAS)
    total = highest * 0.0
    moment = highest * 0.0
    for start in range(0, num_entries, BLOCK):
        entries = start + tl.arange(0, BLOCK)
        inside = entries < num_entries
        block = _load_block(logits, bias, entries, inside, HAS_BIAS)
        new_highest = tl.maximum(highest, tl.max(tl.where(inside, block, highest), 0))
        shift = highest - new_highest
        shifted = tl.where(inside, block - new_highest, 0.0)
        exponentials = tl.where(inside, tl.exp(shifted), 0.0)
        moment = (moment + shift * total) * tl.exp(shift) + tl.sum(shifted * exponentials, 0)
        total = total * tl.exp(shift) + tl.sum(exponentials, 0)
        highest = new_highest
    log_sum = tl.log(total)
    tl.store(logprob, target_logit - highest - log_sum)
    tl.store(entropy, log_sum - moment / total)
    tl.store(is_argmax, target_logit == highest)
    tl.store(log_total, highest + log_sum)
    return highest + log_sum


@triton.jit
def _replace_row(
    logits,
    bias,
    target,
    log_total,
    entropy,
    grad_logprob,
    grad_entropy,
    num_entries,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_ENTROPIES: tl.constexpr,
):
    """Write one row's gradient over its logits."""
    for start in range(0, num_entries, BLOCK):
        entries = start + tl.arange(0, BLOCK)
        inside = entries < num_entries
        block_logprobs = _load_block(logits, bias, entries, inside, HAS_BIAS) - log_total
        factors = -grad_logprob
        if HAS_ENTROPIES:
            factors = factors - grad_entropy * (block_logprobs + entropy)
        gradients = tl.exp(block_logprobs) * factors
        gradients += tl.where(entries == target, grad_logprob, 0.0)
        tl.store(logits + entries, gradients.to(logits.dtype.element_ty), mask=inside)


@triton.jit
def _load_block(logits, bias, entries, inside, HAS_BIAS: tl.constexpr):
    """Return a block of one row's logits with their bias, in float32."""
    block = tl.load(logits + entries, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        block += tl.load(bias + entries, mask=inside, other=0.0).to(tl.float32)
    return block


@triton.jit
def _load_entry(logits, bias, entry, HAS_BIAS: tl.constexpr):
    """Return one logit with its bias, in float32."""
    logit = tl.load(logits + entry).to(tl.float32)
    if HAS_BIAS:
        logit += tl.load(bias + entry).to(tl.float32)
    return logit
