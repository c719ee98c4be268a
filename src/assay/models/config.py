"""What a user chooses about an encoder, and how large that is; imports no torch."""

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
    """Numbers that a model holds while it is trained."""

    parameters: int
    """Those that are trained."""
    activations: int
    """Kept by the forward pass of one micro-batch for its backward pass."""
    frozen: int = 0
    """Weights below adapters, and those of a reference."""


class EncoderShape(NamedTuple):
    """How large an encoder is."""

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
    """Number of tokens of the dataset's tokenizer."""

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
    """Dropout of attention weights. A value other than 0 disables the fast kernel (on a CPU: twice the
    step)."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "NewEncoderConfig":
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size={self.hidden_size} does not divide into num_heads={self.num_heads}")
        return self

    @property
    def shape(self) -> EncoderShape:
        """How large it is."""
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
        """How large it is, as its folder says; None where that has other words for it."""
        tree = json_object(checkpoint_path(self.path) / "config.json")
        named = [next((tree[name] for name in names if name in tree), None) for names in _SIZES]
        sizes = [size for size in named if isinstance(size, int)]
        return EncoderShape(*sizes) if len(sizes) == len(named) else None

    def num_parameters(self) -> int | None:
        """Entries of the weights in its folder, but for a pooling layer; None where they are no safetensors."""
        shapes = weight_shapes(self.path)
        if shapes is None:
            return None
        return sum(math.prod(shape) for name, shape in shapes.items() if "pooler" not in name)


_FLOATS = ("F64", "F32", "F16", "BF16")
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_SIZES = (("hidden_size", "dim"), ("num_hidden_layers", "n_layers"), ("intermediate_size", "hidden_dim"))
"""What folders call the sizes of a shape."""


EncoderConfig = Annotated[NewEncoderConfig | PretrainedEncoderConfig, Field(discriminator="type")]


def weight_shapes(path: str) -> dict[str, list[int]] | None:
    """Shapes of the weights in a checkpoint folder by name; None where they are no safetensors."""
    return stored_tensors(checkpoint_path(path))


def stored_tensors(folder: Path) -> dict[str, list[int]] | None:
    """Name -> shape of the tensors in a folder's file or shards, by their headers; None where it has none.

    Raises `ConfigError` for a file that cannot be read, and where nothing says which tensor is meant.
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
                f"{folder / file}: cannot be read: {error}. It is missing, damaged or cut short: copy it again."
            ) from error
    return stored if files else None


def checkpoint_path(path: str) -> Path:
    """The checkpoint folder behind a path or a `package:NAME/FOLDER`."""
    folder = installed_path(path)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder}: no config.json there. Name a folder that save_pretrained wrote.")
    return folder
