"""Transformer encoders: new ones from a few numbers, or any Hugging Face checkpoint folder."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, model_validator

from assay.base.config import FrozenConfig
from assay.base.errors import ConfigError


class NewEncoderConfig(FrozenConfig):
    """A BERT encoder with random weights (drawn from the run's seed)."""

    type: Literal["new"] = "new"

    vocab_size: PositiveInt
    """Of the dataset's tokenizer."""

    hidden_size: PositiveInt = 128
    """Width of the residual stream."""

    num_layers: PositiveInt = 2

    num_heads: PositiveInt = 4

    intermediate_size: PositiveInt = 512
    """Width of the feed-forward layers."""

    max_tokens: PositiveInt = 2048
    """Longest sequence; the size of the position table."""

    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)

    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """On attention's weights. Anything but 0 keeps attention from its fast path (CPU: twice the step)."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "NewEncoderConfig":
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size={self.hidden_size} does not divide into num_heads={self.num_heads}")
        return self


class PretrainedEncoderConfig(FrozenConfig):
    """A checkpoint folder as `save_pretrained` writes it."""

    type: Literal["pretrained"]

    path: str
    """Folder with `config.json` and `model.safetensors`; `package:NAME/FOLDER` is a folder inside an
    installed Python package."""

    dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Overrides the checkpoint's own; None keeps it."""


EncoderConfig = Annotated[NewEncoderConfig | PretrainedEncoderConfig, Field(discriminator="type")]


def build_encoder(config: NewEncoderConfig | PretrainedEncoderConfig) -> Any:
    """The Hugging Face model: `input_ids, attention_mask, position_ids -> last_hidden_state`."""
    if isinstance(config, PretrainedEncoderConfig):
        return _pretrained(config)
    from transformers import BertConfig, BertModel

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


def checkpoint_path(path: str) -> Path:
    """The folder behind a path or a `package:NAME/FOLDER`."""
    if not path.startswith("package:"):
        return Path(path)
    import importlib.util

    name, _, folder = path.removeprefix("package:").partition("/")
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"{path}: the Python package '{name}' is not installed. Install it with pip.")
    return Path(spec.submodule_search_locations[0]) / folder


def _pretrained(config: PretrainedEncoderConfig) -> Any:
    from transformers import AutoConfig, AutoModel

    folder = checkpoint_path(config.path)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder}: no config.json there. Name a folder that save_pretrained wrote.")
    architecture = AutoConfig.from_pretrained(folder, local_files_only=True)
    if config.dropout is not None:
        for name, value in architecture.to_dict().items():
            if "dropout" in name and isinstance(value, float):
                setattr(architecture, name, config.dropout)
    model = AutoModel.from_pretrained(
        folder, config=architecture, local_files_only=True, attn_implementation="sdpa"
    )
    # A pooling layer that the loss does not use would have no gradient.
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model
