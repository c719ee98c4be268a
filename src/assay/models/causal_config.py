"""The configuration of a causal language model, and its size; imports no torch."""

from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from assay.base.config import FrozenConfig
from assay.base.errors import ConfigError, NotInstalledError
from assay.base.installed import installed_path
from assay.data.dataset.checkpoint_tokens import folder_end_ids
from assay.data.dataset.tokens import json_object
from assay.models.config import ModelSize, NewEncoderConfig, PretrainedEncoderConfig, checkpoint_path, weight_shapes
from assay.records.dataset import DatasetManifest

Architecture = Literal["llama", "mistral", "qwen2", "qwen3", "olmo2", "gpt2"]
"""The `model_type` of transformers."""

PACKS = frozenset({"llama", "mistral", "qwen2", "qwen3", "olmo2", "gpt2", "gemma", "gpt_neox", "smollm3"})
"""Architectures whose attention respects the boundaries given by position ids; a test checks each."""


class LoraConfig(FrozenConfig):
    """Low-rank adapters (Hu et al. 2021): a matrix W becomes W + alpha / rank * B A; only A and B are trained.

    Needs PEFT (`pip install 'assay[lora]'`). A commit holds the adapters and the digest of the frozen weights.
    """

    also_called: ClassVar = {
        "r": "rank",
        "lora_r": "rank",
        "lora_alpha": "alpha",
        "lora_dropout": "dropout",
        "target_modules": "targets",
    }

    rank: PositiveInt = 16
    """Columns of B."""

    alpha: PositiveFloat = 32.0
    """Scale of the adapters' output, divided by the rank."""

    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout of an adapter's input."""

    targets: tuple[str, ...] = ()
    """Names of matrices (`q_proj`); none: all of attention and feed-forward layers."""

    def adapts(self, name: str) -> bool:
        return any(name == target or name.endswith(f".{target}") for target in self.targets or USUAL_TARGETS)


USUAL_TARGETS = (
    "q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "gate_proj", "up_proj", "gate_up_proj", "down_proj",
    "c_attn", "c_fc", "c_proj", "query_key_value", "attention.dense", "dense_h_to_4h", "dense_4h_to_h",
)  # fmt: skip
"""Names of the attention and feed-forward matrices in the supported architectures."""


class CausalShape(NamedTuple):
    """The limits that a language model sets to its rows."""

    vocab_size: int
    max_tokens: int
    """Longest sequence."""


class DecoderShape(NamedTuple):
    """The dimensions of a decoder."""

    hidden_size: int
    num_layers: int
    intermediate_size: int
    query_size: int
    """Width of all queries together."""
    kv_size: int
    """Width of all keys together."""
    is_gated: bool
    """True if the feed-forward layer has three matrices, False if it has two."""

    def activation_numbers(self, num_tokens: int, *, checkpointed: bool) -> int:
        """Numbers that a forward pass over so many tokens, padding counted, keeps for the backward pass.

        Of a layer and token: its input, that normed, and what goes on to the projections; queries, keys, values, what
        attention gives (twice: as it is, and laid out for the projection); the same three around the second norm; and
        the feed-forward layer: its gate before and behind its non-linearity, its other half, and their product. Around
        the layers: the last norm's three, the states that go to a head, and their gradient.
        """
        width, wide = self.hidden_size, self.intermediate_size
        a_layer = 9 * width + 2 * self.kv_size + 4 * wide
        activations = self.num_layers * width + a_layer if checkpointed else self.num_layers * a_layer
        return num_tokens * (activations + 6 * width + 2 * wide)

    def adapter_numbers(self) -> int:
        """Return the numbers that adapters add for each token, as measured: each adapter's output, and its sum
        with the matrix's output."""
        return 2 * self.num_layers * (3 * self.hidden_size + 2 * self.kv_size + 2 * self.intermediate_size)


HEAD_NUMBERS = 1 << 22
"""Logits of one chunk on a CPU (see `head`): 16 MB, which glibc retains for the next chunk."""


class NewCausalConfig(FrozenConfig):
    """A decoder with random weights and no dropout."""

    also_called: ClassVar = {
        **NewEncoderConfig.also_called,
        "model_type": "architecture",
        "num_key_value_heads": "num_kv_heads",
        "n_kv_heads": "num_kv_heads",
        "tie_word_embeddings": "tie_embeddings",
    }

    type: Literal["new"] = "new"

    architecture: Architecture = "llama"
    """The `model_type` of transformers."""

    vocab_size: PositiveInt
    """Size of the dataset's tokenizer."""

    hidden_size: PositiveInt = 128
    """Width of the residual stream."""

    num_layers: PositiveInt = 2

    num_heads: PositiveInt = 4

    num_kv_heads: PositiveInt | None = None
    """Heads of keys and values, shared by groups of query heads (Ainslie et al. 2023); null: `num_heads`."""

    intermediate_size: PositiveInt = 384
    """Width of the feed-forward layers; gated except in `gpt2`."""

    max_tokens: PositiveInt = 2048
    """Longest sequence."""

    tie_embeddings: bool = False
    """Use one matrix for embeddings and logits."""

    lora: LoraConfig | None = None
    """Train only adapters; null trains all weights."""

    checkpoint_activations: bool = False
    """Recompute each layer in the backward pass: far less memory for a third more time."""

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    @property
    def packs(self) -> bool:
        return self.architecture in PACKS

    @property
    def takes_lines(self) -> bool:
        return self.packs

    def shape(self) -> CausalShape:
        return CausalShape(self.vocab_size, self.max_tokens)

    def linear_sizes(self) -> dict[str, int]:
        """Matrices that can have adapters, in one layer: name -> input plus output width."""
        width, wide = self.hidden_size, self.intermediate_size
        if self.architecture == "gpt2":
            of_attention = {"attn.c_attn": 4 * width, "attn.c_proj": 2 * width}
            return of_attention | dict.fromkeys(("mlp.c_fc", "mlp.c_proj"), width + wide)
        kv = self.kv_heads * (width // self.num_heads)
        of_attention = {"q_proj": 2 * width, "k_proj": width + kv, "v_proj": width + kv, "o_proj": 2 * width}
        return of_attention | dict.fromkeys(("gate_proj", "up_proj", "down_proj"), width + wide)

    def num_parameters(self) -> int:
        """Return the number of trained parameters; a tied embedding counts once."""
        if self.lora is not None:
            adapted = [size for name, size in self.linear_sizes().items() if self.lora.adapts(name)]
            return self.num_layers * self.lora.rank * sum(adapted)
        width, wide, layers = self.hidden_size, self.intermediate_size, self.num_layers
        kv = self.kv_heads * (width // self.num_heads)
        embeddings = self.vocab_size * width * (1 if self.tie_embeddings else 2)
        if self.architecture == "gpt2":
            a_layer = 4 * width * (width + 1) + 2 * width * wide + wide + width + 4 * width
            return embeddings + self.max_tokens * width + layers * a_layer + 2 * width
        norms = {"qwen2": width + 2 * kv, "qwen3": 2 * (width // self.num_heads), "olmo2": width + kv}
        a_layer = 2 * width * (width + kv) + 3 * width * wide + 2 * width + norms.get(self.architecture, 0)
        return embeddings + layers * a_layer + width

    @model_validator(mode="after")
    def _heads_divide(self) -> "NewCausalConfig":
        if self.hidden_size % self.num_heads or self.num_heads % self.kv_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} must divide into num_heads={self.num_heads}, and these into "
                f"num_kv_heads={self.kv_heads}"
            )
        if self.architecture != "gpt2" and self.hidden_size // self.num_heads % 2:
            raise ValueError(
                f"hidden_size={self.hidden_size} / num_heads={self.num_heads} is odd: rotary positions turn "
                "pairs of numbers"
            )
        if self.architecture == "gpt2" and self.kv_heads != self.num_heads:
            raise ValueError("architecture=gpt2 has no num_kv_heads. Leave it out, or use llama")
        return self

    def matrices(self) -> list[str]:
        return list(self.linear_sizes())

    def decoder(self) -> DecoderShape:
        """The dimensions of a decoder."""
        kv = self.kv_heads * (self.hidden_size // self.num_heads)
        return DecoderShape(
            self.hidden_size, self.num_layers, self.intermediate_size, self.hidden_size, kv, self.architecture != "gpt2"
        )


class PretrainedCausalConfig(FrozenConfig):
    """A checkpoint folder written by `save_pretrained`."""

    type: Literal["pretrained"]

    path: str
    """Folder with `config.json` and the weights; `package:NAME/FOLDER` is a folder of an installed Python package."""

    lora: LoraConfig | None = None
    """Train only adapters; null trains all weights."""

    checkpoint_activations: bool = False
    """As for a new model."""

    @property
    def packs(self) -> bool:
        """True if rows may share a sequence. If the folder is gone, that was checked when the run began."""
        return not self._has_config() or self._tree().get("model_type") in PACKS

    @property
    def takes_lines(self) -> bool:
        """True if `line_attention` computes the model's attention: it has no dropout."""
        tree = self._tree() if self._has_config() else {}
        return self.packs and not any(tree.get(name) for name in ("attention_dropout", "attn_pdrop"))

    def shape(self) -> CausalShape | None:
        """Return the limits for its rows; None if its `config.json` uses unknown names."""
        tree = self._tree()
        tokens = next((tree[name] for name in LONGEST if isinstance(tree.get(name), int)), None)
        vocabulary = tree.get("vocab_size")
        return CausalShape(vocabulary, tokens) if isinstance(vocabulary, int) and tokens else None

    def end_ids(self) -> tuple[int, ...]:
        return folder_end_ids(checkpoint_path(self.path))

    def num_parameters(self) -> int | None:
        """Return the number of trained parameters; None if the weights are no single safetensors file."""
        if self.lora is None:
            return PretrainedEncoderConfig(type="pretrained", path=self.path).num_parameters()
        shapes = weight_shapes(self.path)
        if shapes is None:
            return None
        adapted = [shape for name, shape in shapes.items() if self.lora.adapts(name.removesuffix(".weight"))]
        return self.lora.rank * sum(map(sum, adapted))

    def matrices(self) -> list[str] | None:
        """Return the names of the matrices that can have adapters; None if the weights are no single
        safetensors file."""
        shapes = weight_shapes(self.path)
        if shapes is None:
            return None
        return [name.removesuffix(".weight") for name, shape in shapes.items() if len(shape) == 2]

    def decoder(self) -> DecoderShape | None:
        """Return the dimensions; None if its `config.json` uses unknown names."""
        tree = self._tree()
        named = [next((tree[name] for name in names if isinstance(tree.get(name), int)), None) for names in _SIZES]
        width, layers, wide, heads = named
        if width is None or layers is None or heads is None:
            return None
        head_width = tree.get("head_dim") or width // heads
        kv = (tree.get("num_key_value_heads") or heads) * head_width
        is_gated = tree.get("model_type") not in ("gpt2", "gpt_neox")
        return DecoderShape(width, layers, wide or 4 * width, heads * head_width, kv, is_gated)

    def _has_config(self) -> bool:
        return (installed_path(self.path) / "config.json").is_file()

    def _tree(self) -> dict[str, Any]:
        return json_object(checkpoint_path(self.path) / "config.json")


_SIZES = (
    ("hidden_size", "n_embd"),
    ("num_hidden_layers", "n_layer"),
    ("intermediate_size", "n_inner"),
    ("num_attention_heads", "n_head"),
)
"""Keys for the dimensions in `config.json`."""
NO_PEFT = "{where}.lora: PEFT is not installed. pip install 'assay[lora]'"
LONGEST = ("max_position_embeddings", "n_positions", "max_seq_len")
"""Keys for the longest sequence in `config.json`."""


CausalConfig = Annotated[NewCausalConfig | PretrainedCausalConfig, Field(discriminator="type")]


LOGIT_COPIES = 3
"""Copies of the logits that exist at once: logits, exponentials, and the result."""


def model_size(
    model: NewCausalConfig | PretrainedCausalConfig, num_tokens: int, *, copies: int = 0, has_head: bool = True
) -> ModelSize | None:
    """Return what training holds in memory, with `copies` frozen models; None if only the weights tell."""
    whole = model.model_copy(update={"lora": None}).num_parameters()
    trained, decoder, shape = model.num_parameters(), model.decoder(), model.shape()
    if whole is None or trained is None or decoder is None or shape is None:
        return None
    frozen = copies * whole + (whole if model.lora else 0)
    activations = decoder.activation_numbers(num_tokens, checkpointed=model.checkpoint_activations)
    if model.lora:
        activations += num_tokens * decoder.adapter_numbers()
    logits = LOGIT_COPIES * min(HEAD_NUMBERS, num_tokens * shape.vocab_size) if has_head else 0
    return ModelSize(trained, activations + logits, frozen)


def check_rows(model: NewCausalConfig | PretrainedCausalConfig, manifest: DatasetManifest, where: str) -> None:
    """Raise `ConfigError` for rows that the model cannot take and adapters that match nothing; `where` is the
    model's key."""
    _check_adapter_targets(model, where)
    if (shape := model.shape()) is not None:
        check_limits(shape, manifest, where, is_new=isinstance(model, NewCausalConfig))


def check_limits(shape: CausalShape, manifest: DatasetManifest, where: str, *, is_new: bool = False) -> None:
    """Raise `ConfigError` for rows beyond a model's limits; those of a new model can be changed."""
    if (longest := manifest.lengths.max) > shape.max_tokens:
        hint = f"Build the dataset with shorter rows (--max-tokens {shape.max_tokens})."
        raise ConfigError(
            f"{where}: it takes {shape.max_tokens} tokens, but the longest row of dataset '{manifest.name}' "
            f"has {longest}. {f'Use {where}.max_tokens={longest} or more.' if is_new else hint}"
        )
    if (largest := manifest.max_token_id) >= shape.vocab_size:
        hint = "Build the dataset with the model's own tokenizer."
        if is_new:
            hint = f"Use {where}.vocab_size={largest + 1} or more, the size of the dataset's tokenizer."
        raise ConfigError(
            f"{where}: its vocabulary has {shape.vocab_size} tokens, but dataset '{manifest.name}' holds token "
            f"{largest}. {hint}"
        )


def check_scorer(shape: CausalShape | None, where: str, *, longest: int, vocab_size: int | None, what: str) -> None:
    """Raise `ConfigError` if a model cannot score all that the policy may generate; `what` it is.

    `longest` is the largest number of tokens of a prompt with its completion, `vocab_size` the policy's (None if its
    folder does not say).
    """
    if shape is not None and longest > shape.max_tokens:
        raise ConfigError(
            f"{where}: it takes {shape.max_tokens} tokens, but the longest prompt with a completion of "
            f"method.sampling.max_tokens has {longest}. Use a smaller method.sampling.max_tokens, or a {what} that "
            "takes more."
        )
    if shape is not None and vocab_size is not None and vocab_size > shape.vocab_size:
        raise ConfigError(
            f"{where}: its vocabulary has {shape.vocab_size} tokens, and that of method.model {vocab_size}: it could "
            f"not score all that the policy may generate. Use a {what} of the model's own family."
        )


def _check_adapter_targets(model: NewCausalConfig | PretrainedCausalConfig, where: str) -> None:
    if model.lora is None:
        return
    known = model.matrices()
    names = known or []
    reached = [name for name in names if model.lora.adapts(name)]
    for target in () if known is None else model.lora.targets or USUAL_TARGETS:
        if any(name == target or name.endswith(f".{target}") for name in reached):
            continue
        if model.lora.targets or not reached:
            ends = sorted({name.rpartition(".")[2] for name in names})
            what = f"no matrix is called '{target}'" if model.lora.targets else "no matrix has a usual name"
            raise ConfigError(f"{where}.lora.targets: {what}. There are {', '.join(ends[:20])}.")
    if find_spec("peft") is None:
        raise NotInstalledError(NO_PEFT.format(where=where))
