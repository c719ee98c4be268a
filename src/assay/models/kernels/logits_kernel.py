"""The Triton kernel over the logits of a chunk of tokens: scores in one read, and the gradient in place of the logits.

A program computes one token's row and nothing else, in blocks of entries from the first to the last, in float32. So a
row's bits depend neither on the other rows nor on their number, and nothing is added in an order of arrival.

With logits x, a block updates the maximum m and two sums relative to it (Milakov and Gimelshein 2018, "Online
normalizer calculation for softmax", with a second sum for the entropy):

    s = sum exp(x - m)            a new maximum m': s' = s exp(m - m')
    t = sum (x - m) exp(x - m)                      t' = (t + (m - m') s) exp(m - m')

    log p(target) = x[target] - m - log s           entropy = log s - t / s
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from assay.base.shapes import Float, Float32, Int64, Shaped

Logits = Float[Tensor, "token entry"]
Bias = Float[Tensor, "entry"] | None
Targets = Int64[Tensor, "token"]
OfTokens = Float32[Tensor, "token"]
MAX_BLOCK = 4096
"""Entries that a program holds at once: 16 for each of the 256 threads of 8 warps."""


def score_rows(
    logits: Logits,
    bias: Bias,
    targets: Targets,
    scores: Sequence[Shaped[Tensor, "token"]],
    grad_logprobs: OfTokens | None = None,
) -> None:
    """Write the targets' logprobs, entropies, whether they are the argmax, and the logarithms of the totals.

    With `grad_logprobs`, write the logits' gradient over them in the same launch.
    """
    _launch(logits, bias, targets, *scores, grad_logprobs, None, SCORES=True, GRADIENT=grad_logprobs is not None)


def replace_by_gradient(
    logits: Logits, bias: Bias, targets: Targets, log_totals: OfTokens, entropies: OfTokens, grad_logprobs: OfTokens,
    grad_entropies: OfTokens | None,
) -> None:  # fmt: skip
    """Write the gradient of the logits over them, given those of the scores; 0 in rows whose gradients are 0."""
    scores = (None, entropies, None, log_totals)
    _launch(logits, bias, targets, *scores, grad_logprobs, grad_entropies, SCORES=False, GRADIENT=True)


def _launch(logits: Logits, bias: Bias, *of_tokens: Tensor | None, **flags: bool) -> None:
    """Start one program for each row of contiguous logits; a tensor that is None is neither read nor written."""
    num_tokens, num_entries = logits.shape
    present = [logits if tensor is None else tensor for tensor in (logits, bias, *of_tokens)]
    assert all(map(torch.Tensor.is_contiguous, present)), [tensor.stride() for tensor in present]
    if num_tokens:
        _logits_kernel[(num_tokens,)](
            *present,
            num_entries=num_entries,
            HAS_BIAS=bias is not None,
            HAS_ENTROPIES=of_tokens[-1] is not None,
            BLOCK=min(MAX_BLOCK, triton.next_power_of_2(num_entries)),
            num_warps=8,
            enable_fp_fusion=False,  # so that both numbers of launches round alike
            **flags,
        )


@triton.jit
def _logits_kernel(
    logits,
    bias,
    targets,
    logprobs,
    entropies,
    is_argmax,
    log_totals,
    grad_logprobs,
    grad_entropies,
    num_entries,
    HAS_BIAS: tl.constexpr,
    HAS_ENTROPIES: tl.constexpr,
    BLOCK: tl.constexpr,
    SCORES: tl.constexpr,
    GRADIENT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_logits = logits + row * num_entries
    target = tl.load(targets + row)
    if SCORES:
        logprob, entropy, is_highest, log_total = _row_scores(row_logits, bias, target, num_entries, HAS_BIAS, BLOCK)
        tl.store(logprobs + row, logprob)
        tl.store(entropies + row, entropy)
        tl.store(is_argmax + row, is_highest)
        tl.store(log_totals + row, log_total)
    else:
        entropy = tl.load(entropies + row)
        log_total = tl.load(log_totals + row)
    if GRADIENT:
        if SCORES:
            tl.debug_barrier()  # all threads have read the target's logit before one of them writes over it
        grad_logprob = tl.load(grad_logprobs + row)
        grad_entropy = 0.0
        if HAS_ENTROPIES:
            grad_entropy = tl.load(grad_entropies + row)
        for start in range(0, num_entries, BLOCK):
            entries = start + tl.arange(0, BLOCK)
            inside = entries < num_entries
            block_logprobs = _load_block(row_logits, bias, entries, inside, HAS_BIAS) - log_total
            factors = -grad_logprob
            if HAS_ENTROPIES:
                factors = factors - grad_entropy * (block_logprobs + entropy)
            gradients = tl.exp(block_logprobs) * factors
            gradients += tl.where(entries == target, grad_logprob, 0.0)
            tl.store(row_logits + entries, gradients.to(logits.dtype.element_ty), mask=inside)


@triton.jit
def _row_scores(logits, bias, target, num_entries, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):
    """Return logprob, entropy, whether the target is the argmax, and the logarithm of the total of one row."""
    target_logit = _load_block(logits, bias, target, target >= 0, HAS_BIAS)
    highest = _load_block(logits, bias, 0, target >= 0, HAS_BIAS)
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
    return target_logit - highest - log_sum, log_sum - moment / total, target_logit == highest, highest + log_sum


@triton.jit
def _load_block(logits, bias, entries, inside, HAS_BIAS: tl.constexpr):
    """Return a block of one row's logits, or one of them, with their bias, in float32."""
    block = tl.load(logits + entries, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        block += tl.load(bias + entries, mask=inside, other=0.0).to(tl.float32)
    return block
