"""A causal language model that returns logprobs and entropies instead of logits.

    input_ids [row, token]  --decoder-->  states  --head, for scored tokens only (see `head`)-->  TokenScores

Rows are padded on the right, so causal attention needs no mask; or several rows share a sequence, separated by position
ids that restart at 0.
"""

from typing import Any

import torch
from torch import Tensor, nn

from assay.base.errors import ConfigError
from assay.base.shapes import Bool, Float, Int
from assay.models.causal import build_causal
from assay.models.causal_config import NewCausalConfig, PretrainedCausalConfig
from assay.models.head import TokenScores, head_scores

TOLERANCE = 1e-3
"""Largest difference, in nats, between two computations of the same logprobs; a different head exceeds it."""


class CausalNetwork(nn.Module):
    """A Hugging Face model whose forward pass stores no tensor of tokens x vocabulary."""

    def __init__(self, config: NewCausalConfig | PretrainedCausalConfig) -> None:
        super().__init__()
        self.network = build_causal(config)
        _check_plain_head(self)

    def forward(
        self,
        input_ids: Int[Tensor, "row token"],
        position_ids: Int[Tensor, "row token"] | None = None,
        scored: Bool[Tensor, "row target"] | None = None,
        *,
        temperature: float = 1.0,
    ) -> TokenScores:
        """Return the scores of each token but the first, [row, token - 1]: of those marked by `scored`, or of all.

        The head computes nothing for other tokens.

        `position_ids` are needed for packed rows: they restart at each row. Logits are divided by `temperature`.
        """
        states = hidden_states(self.network.base_model, input_ids, position_ids)[:, :-1].flatten(0, 1)
        targets = input_ids[:, 1:].flatten()
        head = self.network.get_output_embeddings()
        bias = getattr(head, "bias", None)
        if temperature != 1.0:
            states, bias = states / temperature, None if bias is None else bias / temperature
        shape = input_ids[:, 1:].shape
        scored_indices = None if scored is None else scored.flatten().nonzero()[:, 0]
        if scored_indices is None or len(scored_indices) == len(targets):
            found = head_scores(states, head.weight, bias, targets)
            return TokenScores(*(score.view(shape) for score in found))
        found = head_scores(states.index_select(0, scored_indices), head.weight, bias, targets[scored_indices])
        expanded = (score.new_zeros(len(targets)).index_copy(0, scored_indices, score) for score in found)
        return TokenScores(*(score.view(shape) for score in expanded))


def sequence_logprobs(
    model: nn.Module, input_ids: Int[Tensor, "row token"], scored: Bool[Tensor, "row target"]
) -> Float[Tensor, "row"]:
    """Return the sum of the logprobs of each row's scored tokens."""
    scores: TokenScores = model(input_ids, None, scored)
    return scores.logprobs.sum(dim=1)


def hidden_states(
    decoder: Any, input_ids: Int[Tensor, "row token"], position_ids: Int[Tensor, "row token"] | None = None
) -> Float[Tensor, "row token width"]:
    """Return the last layer's states of a model without head (`build_causal(config, with_head=False)`)."""
    states: Tensor = decoder(input_ids=input_ids, position_ids=position_ids, use_cache=False).last_hidden_state
    return states


@torch.no_grad()
def _check_plain_head(model: CausalNetwork) -> None:
    """Raise if the head is not a plain linear map (e.g. soft-capped or scaled logits)."""
    was_training = model.training
    model.eval()
    tokens = torch.arange(4)[None] % model.network.config.vocab_size
    expected = model.network(input_ids=tokens, use_cache=False).logits[:, :-1].float().log_softmax(-1)
    expected = expected.gather(2, tokens[:, 1:, None])[:, :, 0]
    difference = float((model(tokens).logprobs - expected).abs().max())
    model.train(was_training)
    if not difference < TOLERANCE:
        raise ConfigError(
            f"{type(model.network).__name__}: its head is not a plain matrix (this architecture's logits "
            f"are scaled or capped; they differ by {difference:.2g} nats), which is not supported. Use "
            "an architecture with a plain head: llama, mistral, qwen2, qwen3, olmo2, gpt2."
        )
