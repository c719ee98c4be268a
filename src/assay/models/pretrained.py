"""Loads models from checkpoint folders and checks that model and folder have the same tensors.

transformers initializes missing weights at random, drops unexpected tensors, and only logs both; here both are
errors that name the tensors. For an exported folder, the SHA-256 of each file is checked first.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.utils import logging as hf_logging

from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.models.config import stored_tensors
from assay.models.described import builds_without_numbers
from assay.store.model_folder import whole_export

NUM_NAMED = 3
"""Tensors that an error names for each problem."""
_ADAPTERS = "adapter_config.json"
_MASK = re.compile(r"\.att(?:n|ention)\.(?:masked_)?bias$")
"""Causal masks, which earlier versions of transformers stored among the weights."""

# transformers logs a table of such tensors before the error is raised here.
logging.getLogger("transformers.modeling_utils").addFilter(lambda line: "LOAD REPORT" not in line.getMessage())


class ModelKind(NamedTuple):
    """The kind of model that a folder is loaded as."""

    loader: Any
    """One of transformers' Auto classes, or a model class."""
    name: str
    replaces_head: bool = False
    """Ignore tensors outside the base model and a missing pooling layer: both are heads of other tasks."""


CAUSAL = ModelKind(AutoModelForCausalLM, "a causal language model")
_DECODER = ModelKind(AutoModel, "a decoder")
_REWARD = ModelKind(AutoModelForSequenceClassification, "a reward model")
ENCODER = ModelKind(AutoModel, "an encoder", replaces_head=True)


def load_config(folder: Path, kind: ModelKind) -> Any:
    """Return the configuration of a checkpoint folder."""
    return _from_folder(AutoConfig, folder, kind.name)


def declared_kind(folder: Path) -> ModelKind:
    """Return the kind that the folder's configuration names: language model, decoder without head, or reward model."""
    name = (load_config(folder, CAUSAL).architectures or ["LMHeadModel"])[0]
    if name.endswith("ForSequenceClassification"):
        return _REWARD
    return CAUSAL if name.endswith(("ForCausalLM", "LMHeadModel")) else _DECODER


def load_pretrained(kind: ModelKind, folder: Path, **options: Any) -> Any:
    """Load the model of a checkpoint folder without running code from it.

    Raises `ConfigError` if its tensors do not match the model, `DamagedDataError` if a file of an exported
    folder changed.
    """
    whole_export(folder)
    if builds_without_numbers():
        config = options.pop("config", None) or load_config(folder, kind)
        return kind.loader.from_config(config, **options)
    stored = _stored(folder)
    model, info = _from_folder(
        kind.loader, folder, kind.name, output_loading_info=True, ignore_mismatched_sizes=True, **options
    )
    _check_tensors(kind, folder, model, info, stored)
    _check_tied_head(folder, model)
    # The sum is not finite if one number is not, and needs no further memory.
    totals = {name: weight.detach().sum(dtype=torch.float64) for name, weight in model.named_parameters()}
    if not_finite := [name for name, total in totals.items() if not torch.isfinite(total)]:
        raise ConfigError(
            f"{folder}: {_some(not_finite)} not finite (NaN or infinite). The file is corrupt, or the run that "
            "wrote it diverged: take an earlier checkpoint."
        )
    return model


def check_pretrained(kind: ModelKind, folder: Path) -> None:
    """Raise what `load_pretrained` would about names and shapes, from the file headers; no weight is read."""
    if not (stored := _stored(folder)):
        return
    config = load_config(folder, kind)
    # Expanded zeros: a large model needs no memory.
    numbers = {name: torch.zeros(()).expand(shape) for name, shape in stored.items()}
    options = {"config": config, "state_dict": numbers, "ignore_mismatched_sizes": True}
    with _as_config_error(folder, kind.name):
        with torch.device("meta"):
            model_class = type(kind.loader.from_config(config))
        model, info = model_class.from_pretrained(None, output_loading_info=True, **options)
    _check_tensors(kind, folder, model, info, stored)


def _from_folder(loader: Any, folder: Path, name: str, **options: Any) -> Any:
    with _as_config_error(folder, name):
        return loader.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **options)


@contextmanager
def _as_config_error(folder: Path, name: str) -> Iterator[None]:
    hf_logging.disable_progress_bar()
    try:
        yield
    except Exception as error:  # third-party files in a third-party library: any type is raised
        whole_export(folder)  # name a changed file instead of the error that it caused
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(f"{folder}: not {name}: {' '.join(map(str.strip, lines[:2]))}") from error


def _stored(folder: Path) -> dict[str, list[int]]:
    if (folder / _ADAPTERS).is_file():
        raise ConfigError(
            f"{folder}: it holds adapters ({_ADAPTERS}) and perhaps not their base. Merge them "
            "into it (PEFT: merge_and_unload; assay: export without --adapters apart), and name that folder."
        )
    stored = stored_tensors(folder)
    if stored is None and not any(folder.glob("*.bin")):
        raise ConfigError(
            f"{folder}: it has no weights: neither model.safetensors, nor shards and their index, nor "
            "pytorch_model.bin. Save the model with save_pretrained, or copy the files again."
        )
    return stored or {}


def _check_tensors(
    kind: ModelKind, folder: Path, model: Any, info: Mapping[str, Iterable[Any]], stored: Iterable[str]
) -> None:
    prefix = f"{model.base_model_prefix}."
    base = tuple(f"{name}." for name, _ in model.base_model.named_children())
    missing = sorted(info["missing_keys"])
    unexpected = sorted(name for name in info["unexpected_keys"] if not _MASK.search(name))
    cause = _cause(missing, unexpected)
    if kind.replaces_head:
        missing = [name for name in missing if not name.startswith("pooler.")]
        unexpected = [name for name in unexpected if name.startswith((prefix, *base))]
    shapes = sorted(
        f"{name} {list(stored_shape)}, not {list(own)}" for name, stored_shape, own in info["mismatched_keys"]
    )
    # transformers reads a name with and without the base model's prefix, and drops one of two.
    duplicates = [name for name in stored if f"{prefix}{name}" in stored]
    tensors_by_problem = {
        "missing, and would be drawn at random": missing,
        "unknown to the model": unexpected,
        "of another shape": shapes,
        f"stored twice, with and without '{prefix}'": duplicates,
    }
    if any(tensors_by_problem.values()):
        problems = "; ".join(f"{_some(names)} {what}" for what, names in tensors_by_problem.items() if names)
        raise ConfigError(
            f"{folder}: its tensors are not those of {kind.name} ({type(model).__name__}, by its config.json): "
            f"{problems}. {cause}"
        )


def _check_tied_head(folder: Path, model: Any) -> None:
    """Raise if a tied head is stored with other numbers: transformers would use the head, other engines the
    embedding."""
    head = model.get_output_embeddings()
    is_tied = head is not None and model.config.tie_word_embeddings
    if is_tied and head.weight is not model.get_input_embeddings().weight:
        raise ConfigError(
            f"{folder}: config.json ties the head to the embedding (tie_word_embeddings), and the two are "
            "stored with other numbers. Write false there if the stored head is meant; else remove the head."
        )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NUM_NAMED:,} more" if len(names) > NUM_NAMED else ""
    verb = "is" if len(names) == 1 else "are"
    return f"{number_of(len(names), 'tensor')} ({', '.join(names[:NUM_NAMED])}{more}) {verb}"


def _cause(missing: list[str], unexpected: list[str]) -> str:
    """Return the likely cause and its fix, from the differences of the names."""
    if any(".lora_" in name for name in unexpected):
        return "They are those of adapters: merge them into their base first (PEFT: merge_and_unload)."
    prefixes = {name.removesuffix(own) for name in unexpected[:NUM_NAMED] for own in missing if name.endswith(own)}
    if prefix := next((wrapper for wrapper in prefixes if wrapper + missing[-1] in unexpected), ""):
        return (
            f"The names begin with '{prefix}', as a wrapper of the model writes them (torch.compile: "
            "_orig_mod., DDP: module.): save the model inside the wrapper, or rename the tensors."
        )
    return "Save the whole model again with save_pretrained, or restore the folder."
