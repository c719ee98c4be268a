"""What a user chooses about an encoder; imports no torch."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from assay.base.config import FrozenConfig


class NewEncoderConfig(FrozenConfig):
    """A BERT encoder with random weights (drawn from the run's seed)."""

    type: Literal["new"] = "new"

    vocab_size: PositiveInt
    """The number of tokens of the dataset's tokenizer."""

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
