"""The configuration of an encoder, and its size; imports no torch."""

import math
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, PositiveInt, model_validator
from safetensors import SafetensorError, safe_open

from assay.base.config import FrozenConfig
from assay.base.errors import ConfigError
from assay.base.installed import installed_path
from assay.base.parsing.nesting import parse_json
from assay.data.dataset.tokens import json_object


class ModelSize(NamedTuple):
    """Numbers that training holds in memory."""

    parameters: int
    """Trained parameters."""
    activations: int
    """Activations of one micro-batch that the backward pass needs."""
    frozen: int = 0
    """Weights below adapters and of reference models."""


class EncoderShape(NamedTuple):
    """The dimensions of an encoder."""

    hidden_size: int
    num_layers: int
    intermediate_size: int

    def activation_numbers(self, num_tokens: int) -> int:
        """Numbers that a forward pass over so many tokens, padding counted, keeps for the backward pass.

        Of a layer and token: its input, queries, keys, values, what attention gives (twice: as it is, and
        laid out for the projection), both sums before the norms and the first norm's output, the masks of two
        dropouts; and the feed-forward layer before and behind its non-linearity. Around the layers:
        the embeddings, the last states, and what one layer's backward pass holds for a moment.
        """
        width, wide = self.hidden_size, self.intermediate_size
        a_layer = 11 * width + 2 * wide
        return int(num_tokens * (self.num_layers * a_layer + 6 * width + 2 * wide))


class NewEncoderConfig(FrozenConfig):
    """A BERT encoder with random weights."""

    also_called: ClassVar = {
        "vocab": "vocab_size",
        "width": "hidden_size",
        "d_model": "hidden_size",
        "hidden_dim": "hidden_size",
        "layers": "num_layers",
        "depth": "num_layers",
        "num_hidden_layers": "num_layers",
        "heads": "num_heads",
        "num_attention_heads": "num_heads",
        "d_ff": "intermediate_size",
        "ffn_dim": "intermediate_size",
        "max_length": "max_tokens",
        "seq_len": "max_tokens",
        "max_seq_length": "max_tokens",
        "max_position_embeddings": "max_tokens",
    }

    type: Literal["new"] = "new"

    vocab_size: PositiveInt
    """Size of the dataset's tokenizer."""

    hidden_size: PositiveInt = 128
    """Width of the residual stream."""

    num_layers: PositiveInt = 2

    num_heads: PositiveInt = 4

    intermediate_size: PositiveInt = 512
    """Width of the feed-forward layers."""

    max_tokens: PositiveInt = 2048
    """Longest sequence."""

    dropout: float = Field(default=0.1, ge=0.0, lt=1.0)

    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Not 0 disables the fast kernel (on a CPU: twice the step)."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "NewEncoderConfig":
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size={self.hidden_size} does not divide into num_heads={self.num_heads}")
        return self

    @property
    def shape(self) -> EncoderShape:
        return EncoderShape(self.hidden_size, self.num_layers, self.intermediate_size)


class PretrainedEncoderConfig(FrozenConfig):
    """A checkpoint folder written by `save_pretrained`."""

    type: Literal["pretrained"]

    path: str
    """Folder with `config.json` and `model.safetensors`; `package:NAME/FOLDER` is a folder of an installed
    Python package."""

    dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Replaces the checkpoint's value; null keeps it."""

    @property
    def shape(self) -> EncoderShape | None:
        """The dimensions in its `config.json`; None if it uses unknown names."""
        tree = json_object(checkpoint_path(self.path) / "config.json")
        named = [next((tree[name] for name in names if name in tree), None) for names in _SIZES]
        sizes = [size for size in named if isinstance(size, int)]
        return EncoderShape(*sizes) if len(sizes) == len(named) else None

    def num_parameters(self) -> int | None:
        """Return the number of parameters without a pooling layer; None if the weights are not safetensors."""
        shapes = weight_shapes(self.path)
        if shapes is None:
            return None
        return sum(math.prod(shape) for name, shape in shapes.items() if "pooler" not in name)


_FLOATS = ("F64", "F32", "F16", "BF16")
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_SIZES = (("hidden_size", "dim"), ("num_hidden_layers", "n_layers"), ("intermediate_size", "hidden_dim"))
"""Keys for the dimensions in `config.json`."""


EncoderConfig = Annotated[NewEncoderConfig | PretrainedEncoderConfig, Field(discriminator="type")]


def weight_shapes(path: str) -> dict[str, list[int]] | None:
    """Return name -> shape of the weights in a checkpoint folder; None if they are not safetensors."""
    return stored_tensors(checkpoint_path(path))


def stored_tensors(folder: Path) -> dict[str, list[int]] | None:
    """Return name -> shape of the tensors in a folder's file or shards, from their headers; None if there are none.

    Raises `ConfigError` for an unreadable file, and if both a file and an index exist.
    """
    index, files = folder / _INDEX, [_WEIGHTS] if (folder / _WEIGHTS).is_file() else []
    if index.is_file():
        if files:
            raise ConfigError(f"{folder}: holds {_WEIGHTS} and {_INDEX}. Remove the one that is not meant.")
        try:
            files = sorted({str(file) for file in parse_json(index.read_bytes())["weight_map"].values()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{index}: not an index of shards ({error!r:.100}). Copy it again.") from error
    stored: dict[str, list[int]] = {}
    for file in files:
        try:
            with safe_open(folder / file, framework="np") as opened:
                for name in opened.keys():  # noqa: SIM118 (no mapping)
                    tensor = opened.get_slice(name)
                    if name in stored:
                        raise ConfigError(f"{folder}: {name} is stored in two shards. Save the model again.")
                    if name.endswith(".weight") and tensor.get_dtype() not in _FLOATS:
                        raise ConfigError(
                            f"{folder}: {name} is stored as {tensor.get_dtype()}: quantized weights are not "
                            f"read. Name the model's folder in one of {', '.join(_FLOATS)}."
                        )
                    stored[name] = tensor.get_shape()
        except (OSError, SafetensorError) as error:
            raise ConfigError(
                f"{folder / file}: cannot be read: {error}. It is missing, corrupt or truncated: copy it again."
            ) from error
    return stored if files else None


def checkpoint_path(path: str) -> Path:
    """Return the checkpoint folder of a path or a `package:NAME/FOLDER`."""
    folder = installed_path(path)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder}: it has no config.json. Name a folder that save_pretrained wrote.")
    return folder
