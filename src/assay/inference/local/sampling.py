"""Samples a token from logits by the inverse of the cumulative distribution, each row independently."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from assay.base.shapes import Float, Float32, Float64, Int64
from assay.inference.protocol import SamplingParams
from assay.models.determinism import distinct_writes

ROW_MULTIPLE = 4
"""Numbers that CUDA reads at once."""
GREEDY_BELOW = 1e-30
"""Temperatures by which float32 cannot divide logits: sampling is greedy."""


def sample_tokens(
    logits: Float[Tensor, "row entry"], params: SamplingParams, uniform_draws: Float64[Tensor, "row"]
) -> tuple[Int64[Tensor, "row"], Float32[Tensor, "row"]]:
    """Return a token for each row, where the cumulative probability exceeds the row's uniform draw in [0, 1); and its
    logprob in the distribution that was sampled from."""
    if params.temperature < GREEDY_BELOW:
        tokens = logits.argmax(dim=-1)
        return tokens, torch.zeros(len(tokens), device=logits.device)
    scaled = logits.float() if params.temperature == 1 else logits.float() / params.temperature
    filtered = _filtered(scaled, params)
    if filtered.is_cuda:
        # For other widths CUDA's softmax adds a row's numbers in an order that depends on the row's address.
        filtered = pad(filtered, (0, -filtered.shape[-1] % ROW_MULTIPLE), value=-torch.inf)
    logprobs = torch.log_softmax(filtered, dim=-1)
    cumulative = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
    sought = uniform_draws[:, None] * cumulative[:, -1:]
    # An entry of probability 0 adds nothing to the sum, so it is never the first one above the target.
    tokens = torch.searchsorted(cumulative, sought, right=True).clamp_(max=logits.shape[-1] - 1)
    return tokens[:, 0], logprobs.gather(1, tokens)[:, 0]


def _filtered(scaled: Float[Tensor, "row entry"], params: SamplingParams) -> Float[Tensor, "row entry"]:
    """Mask what top-k and then top-p exclude; ties at the edge of top-k are all kept."""
    if params.top_k is not None and params.top_k < scaled.shape[-1]:
        least = scaled.topk(params.top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < least, -torch.inf)
    if params.top_p < 1:
        ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
        shares = torch.softmax(ordered, dim=-1, dtype=torch.float64)
        # The most probable tokens whose sum reaches top_p; at least the first.
        beyond = shares.cumsum(dim=-1) - shares >= params.top_p
        with distinct_writes():
            scaled = torch.empty_like(scaled).scatter(-1, order, ordered.masked_fill(beyond, -torch.inf))
    return scaled
