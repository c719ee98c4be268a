"""Transformer encoders: new ones from a few numbers, or any Hugging Face checkpoint folder."""

from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from transformers import AutoConfig, AutoModel
from transformers.models.bert.configuration_bert import BertConfig
from transformers.models.bert.modeling_bert import BertModel
from transformers.utils import logging as hf_logging

from assay.base.errors import ConfigError
from assay.training.model.config import NewEncoderConfig, PretrainedEncoderConfig, checkpoint_path

ENCODER = "an encoder"


def build_encoder(config: NewEncoderConfig | PretrainedEncoderConfig) -> Any:
    """The Hugging Face model: `input_ids, attention_mask, position_ids -> last_hidden_state`."""
    if isinstance(config, PretrainedEncoderConfig):
        return _pretrained(config)
    return BertModel(
        BertConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            intermediate_size=config.intermediate_size,
            max_position_embeddings=config.max_tokens,
            hidden_dropout_prob=config.dropout,
            attention_probs_dropout_prob=config.attention_dropout,
            attn_implementation="sdpa",
        ),
        add_pooling_layer=False,
    )


def from_folder(kind: Any, folder: Path, what: str, **options: Any) -> Any:
    """One of transformers' Auto classes from a checkpoint folder, of which no code is run, whoever wrote it."""
    hf_logging.disable_progress_bar()
    try:
        return kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **options)
    except (OSError, ValueError, UnpicklingError) as error:
        raise ConfigError(f"{folder}: not {what}: {str(error).strip().splitlines()[0]}") from error


def _pretrained(config: PretrainedEncoderConfig) -> Any:
    folder = checkpoint_path(config.path)
    architecture = from_folder(AutoConfig, folder, ENCODER)
    if config.dropout is not None:
        for name, value in architecture.to_dict().items():
            if "dropout" in name and isinstance(value, float):
                setattr(architecture, name, config.dropout)
    model = from_folder(AutoModel, folder, ENCODER, config=architecture, attn_implementation="sdpa")
    # A pooling layer that the loss does not use would have no gradient.
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model
