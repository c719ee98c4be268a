"""A reward model: the decoder's state at a sequence's last token, through a linear head."""

from typing import Any

import torch
from torch import Tensor, nn

from assay.base.errors import ConfigError
from assay.base.shapes import Float, Int
from assay.models.causal import build_decoder
from assay.models.causal_config import NewCausalConfig, PretrainedCausalConfig
from assay.models.line_attention import Borders
from assay.models.token_scores import hidden_states, states_at


class RewardNetwork(nn.Module):
    """Maps sequences, padded on the right, to one reward each.

    The head is initialized at random unless the model's folder is a reward model.
    """

    def __init__(self, config: NewCausalConfig | PretrainedCausalConfig) -> None:
        super().__init__()
        decoder, head = build_decoder(config)
        self.decoder: Any = decoder
        self.head = nn.Linear(self.decoder.config.hidden_size, 1, bias=False)
        nn.init.normal_(self.head.weight, std=0.02)
        if head is not None:
            if head.weight.shape != self.head.weight.shape:
                raise ConfigError(
                    f"method.model: its folder is a classifier whose head has {len(head.weight)} rows; a "
                    "reward model's has one. Name a language model or a reward model."
                )
            self.head.load_state_dict(head.state_dict())

    def forward(
        self,
        input_ids: Int[Tensor, "line token"],
        lengths: Int[Tensor, "sequence"],
        position_ids: Int[Tensor, "1 token"] | None = None,
        rows: Borders | None = None,
    ) -> Float[Tensor, "sequence"]:
        """Return the rewards in float32. If sequences are `rows` of one line, `lengths` are the distinct places at
        which they end, counted from 1."""
        if rows is None:
            states = self.last_states(input_ids, lengths)
        else:
            states = states_at(hidden_states(self.decoder, input_ids, position_ids, rows)[0], lengths - 1)
        rewards: Tensor = self.head(states)
        return rewards.squeeze(-1).float()

    def last_states(
        self, input_ids: Int[Tensor, "line token"], lengths: Int[Tensor, "line"]
    ) -> Float[Tensor, "line width"]:
        """Return the states at the last tokens."""
        states = hidden_states(self.decoder, input_ids)
        lines = torch.arange(len(lengths), device=lengths.device)
        return states[lines, lengths - 1]
