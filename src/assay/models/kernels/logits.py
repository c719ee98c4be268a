"""Scores of a chunk of logits, and their gradient: by Triton kernels on a GPU, else by plain torch code.

log p(target) = x[target] - log sum exp(x)      d / dx = [entry is target] - p
entropy       = - sum p log p                   d / dx = -p (log p + entropy)
"""

from typing import NamedTuple

import torch
from torch import Tensor

from assay.base.shapes import Bool, Float, Int
from assay.models.described import has_numbers
from assay.models.determinism import distinct_writes
from assay.models.kernels.triton_use import runs_triton

Logits = Float[Tensor, "token entry"]
Bias = Float[Tensor, "entry"] | None
Targets = Int[Tensor, "token"]
OfTokens = Float[Tensor, "token"]


class LogitScores(NamedTuple):
    """What a chunk's logits say of its targets, one entry for each token."""

    logprobs: OfTokens
    entropies: OfTokens
    is_argmax: Bool[Tensor, "token"]
    log_totals: OfTokens
    """Logarithm of the sum of exp(logit)."""

    @classmethod
    def empty(cls, num_tokens: int, device: torch.device, dtype: torch.dtype = torch.float32) -> "LogitScores":
        """Return memory for scores to be written."""
        logprobs, entropies, log_totals = torch.empty(3, num_tokens, dtype=dtype, device=device)
        return cls(logprobs, entropies, torch.empty(num_tokens, dtype=torch.bool, device=device), log_totals)

    def rows(self, rows: slice) -> "LogitScores":
        """Return views of some tokens' scores."""
        return LogitScores(*(score[rows] for score in self))


def uses_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether Triton kernels compute logits of this type; they add in float32."""
    return dtype != torch.float64 and runs_triton(device)


def score_logits(logits: Logits, bias: Bias, targets: Targets, scores: LogitScores) -> None:
    """Write the targets' scores; `bias` is added to the logits in float32. The logits' memory may be reused."""
    if uses_kernel(logits.device, logits.dtype):
        _launch("score_rows", logits, bias, targets, scores)
        return
    logits = _with_bias(logits, bias)
    highest = logits.amax(dim=-1)
    target_logits = logits.gather(1, targets[:, None])[:, 0]
    scores.is_argmax.copy_(target_logits == highest)
    logits -= highest[:, None]
    probabilities = logits.exp()
    totals = probabilities.sum(dim=-1)
    mean = torch.linalg.vecdot(probabilities, logits) / totals
    scores.log_totals.copy_(totals.log() + highest)
    scores.logprobs.copy_(target_logits - scores.log_totals)
    scores.entropies.copy_(totals.log() - mean)


def logit_gradients(
    logits: Logits, bias: Bias, targets: Targets, log_totals: OfTokens, entropies: OfTokens, grad_logprobs: OfTokens,
    grad_entropies: OfTokens | None,
) -> Logits:  # fmt: skip
    """Return the gradient of the logits, in their memory or in new one, given those of the scores."""
    if uses_kernel(logits.device, logits.dtype):
        _launch("replace_by_gradient", logits, bias, targets, log_totals, entropies, grad_logprobs, grad_entropies)
        return logits
    logprobs = _with_bias(logits, bias)
    logprobs -= log_totals[:, None]
    factor = -grad_logprobs[:, None]
    if grad_entropies is not None:
        factor = factor - grad_entropies[:, None] * (logprobs + entropies[:, None])
    gradients = logprobs.exp_().mul_(factor)
    with distinct_writes():
        return gradients.scatter_add_(1, targets[:, None], grad_logprobs[:, None])


def score_and_differentiate(
    logits: Logits, bias: Bias, targets: Targets, scores: LogitScores, grad_logprobs: OfTokens
) -> None:
    """Write the targets' scores, and the logits' gradient over the logits, by one kernel."""
    _launch("score_rows", logits, bias, targets, scores, grad_logprobs)


def _launch(kernel: str, logits: Logits, *others: object) -> None:
    if not has_numbers(logits):
        logits.neg_()  # an operator that moves as many bytes
        return
    from assay.models.kernels import logits_kernel  # imports triton

    getattr(logits_kernel, kernel)(logits, *others)


def _with_bias(logits: Logits, bias: Bias) -> Logits:
    """Return the logits at least in float32, with their bias; in their own memory if they are so already."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits if bias is None else logits + bias
