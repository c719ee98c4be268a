"""The reward model as transformers' own sequence classification: one number, at a sequence's last token.

transformers finds that token by what it is: the last that is not padding by its number. So the padding must be
a token that ends no row; without one, a sequence is asked about by itself.
"""

from copy import deepcopy
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification

from assay.base.errors import ConfigError
from assay.models.causal_config import PretrainedCausalConfig
from assay.models.exporting import ExportOptions, save_model
from assay.models.reward_network import RewardNetwork
from assay.training.methods.reward.config import RewardConfig

HEAD = "score"
"""What transformers calls it."""
WEIGHTS = "model.safetensors"


def save_exported(network: RewardNetwork, config: RewardConfig, folder: Path, options: ExportOptions) -> None:
    """Write weights and configuration, or the adapters and the head."""
    portable = deepcopy(network.decoder.config)
    portable.id2label, portable.label2id = {0: "reward"}, {"reward": 0}
    portable.problem_type = "regression"
    portable.pad_token_id = options.padding
    with torch.device("meta"):
        model: nn.Module = AutoModelForSequenceClassification.from_config(portable)
    setattr(model, str(model.base_model_prefix), network.decoder)
    setattr(model, HEAD, network.head)
    save_model(model, config.model, folder, options, heads=(HEAD,))


def load_exported(folder: Path) -> nn.Module:
    """The network behind such files."""
    if not (folder / WEIGHTS).is_file():
        raise ConfigError(
            f"{folder}: it holds adapters alone. Export the run with its adapters merged: assay export RUN."
        )
    return RewardNetwork(PretrainedCausalConfig(type="pretrained", path=str(folder)))
