"""Transformer encoders: new ones from a configuration, or Hugging Face checkpoint folders."""

from typing import Any

from transformers.models.bert.configuration_bert import BertConfig
from transformers.models.bert.modeling_bert import BertModel

from assay.models.config import NewEncoderConfig, PretrainedEncoderConfig, checkpoint_path
from assay.models.pretrained import ENCODER, load_config, load_pretrained


def build_encoder(config: NewEncoderConfig | PretrainedEncoderConfig) -> Any:
    """Return the Hugging Face model: `input_ids, attention_mask, position_ids -> last_hidden_state`."""
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


def _pretrained(config: PretrainedEncoderConfig) -> Any:
    folder = checkpoint_path(config.path)
    architecture = load_config(folder, ENCODER)
    if config.dropout is not None:
        for name, value in architecture.to_dict().items():
            if "dropout" in name and isinstance(value, float):
                setattr(architecture, name, config.dropout)
    model = load_pretrained(ENCODER, folder, config=architecture, attn_implementation="sdpa")
    # A pooling layer that the loss does not use would have no gradient.
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model
