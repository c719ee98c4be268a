"""Exports the reward model as transformers' sequence classification: one output, at the sequence's last token.

transformers finds that token as the last one that is not the padding token. So the padding token must not end a
row; without a padding token, sequences can only be scored one at a time.
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
"""Name of the head in transformers."""
WEIGHTS = "model.safetensors"


def save_exported(network: RewardNetwork, config: RewardConfig, folder: Path, options: ExportOptions) -> None:
    """Write weights and configuration, or adapters and head."""
    exported_config = deepcopy(network.decoder.config)
    exported_config.id2label, exported_config.label2id = {0: "reward"}, {"reward": 0}
    exported_config.problem_type = "regression"
    exported_config.pad_token_id = options.padding
    with torch.device("meta"):
        model: nn.Module = AutoModelForSequenceClassification.from_config(exported_config)
    setattr(model, str(model.base_model_prefix), network.decoder)
    setattr(model, HEAD, network.head)
    save_model(model, config.model, folder, options, heads=(HEAD,))


def load_exported(folder: Path) -> nn.Module:
    """Load an exported reward model."""
    if not (folder / WEIGHTS).is_file():
        raise ConfigError(
            f"{folder}: it holds adapters only. Export the run with merged adapters: assay runs export RUN."
        )
    return RewardNetwork(PretrainedCausalConfig(type="pretrained", path=str(folder)))
