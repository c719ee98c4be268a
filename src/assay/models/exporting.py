"""Exports a language model or reward model as a folder that plain transformers loads, with its tokenizer.

    merged   weights under transformers' names, adapters merged into the matrices
    apart    the adapters alone in PEFT's format; the base model is loaded separately

The folder needs nothing of assay and holds no path of this machine. transformers chooses a tokenizer's class by the
model's architecture: some load `tokenizer.json` as it is, others rebuild it with their own normalizer and
pre-tokenizer, whatever its settings say. So AutoTokenizer is compared with the trained one, token by token.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers.utils import logging as hf_logging

from assay.base.errors import ConfigError
from assay.data.dataset.formats.conversation_parts import common_length
from assay.data.dataset.tokens import SETTINGS_FILE
from assay.models.causal import end_ids
from assay.models.causal_config import NewCausalConfig, PretrainedCausalConfig
from assay.models.lora import merge_adapters

Adapters = Literal["merged", "apart"]
_WEIGHTS = "adapter_model.safetensors"
MODULE_FILE = "tokenization_as_saved.py"
_MODULE = '''\
"""transformers would rebuild this folder's tokenizer as its architecture's usual one. This class loads
tokenizer.json as it is."""

from transformers import PreTrainedTokenizerFast


class TokenizerAsSaved(PreTrainedTokenizerFast):
    pass
'''


class ExportOptions(NamedTuple):
    """Options of an export."""

    padding: int | None = None
    """Id of the padding token, if the tokenizer has one."""
    ends: tuple[int, ...] = ()
    """End tokens of completions, the one of the rows first."""
    adapters: Adapters = "merged"
    columns: Mapping[str, str] = MappingProxyType({})
    """Metadata columns of a classifier -> their Arrow types in training."""
    writes_head: bool = False
    """Write the output matrix even if it is the input embedding; transformers leaves out what is tied."""


def save_model(
    model: Any,
    config: NewCausalConfig | PretrainedCausalConfig,
    folder: Path,
    options: ExportOptions,
    heads: tuple[str, ...] = (),
) -> None:
    """Write a transformers model; do not use it afterwards.

    `heads`: modules that are trained as a whole in addition to adapters.
    """
    hf_logging.disable_progress_bar()
    sampling = None if heads else getattr(model, "generation_config", None)
    if sampling is not None:
        sampling.use_cache = True  # training turns it off, and `generate` reads it here
        sampling.eos_token_id = model.config.eos_token_id = all_ends(options.ends, model)
        # Not in config.json: an embedding's `padding_idx` gets no gradient, and rows may hold the token.
        if sampling.pad_token_id is None:
            sampling.pad_token_id = options.padding
    if options.adapters == "apart":
        _check_separable(config)
        _save_adapters(model, folder, heads)
        if sampling is not None:
            sampling.save_pretrained(folder)
        return
    merge_adapters(model)
    model.config.use_cache = True
    is_tied = model.get_output_embeddings() is not None and (
        model.get_output_embeddings().weight is model.get_input_embeddings().weight
    )
    model.save_pretrained(folder, state_dict=_untied(model) if options.writes_head and is_tied else None)


def _untied(model: Any) -> dict[str, Any]:
    """Return the weights with a copy of the output matrix, so that `save_pretrained` does not see it as tied."""
    weights, head = dict(model.state_dict()), model.get_output_embeddings()
    [name] = [f"{name}.weight" for name, module in model.named_modules() if module is head]
    return weights | {name: weights[name].clone()}


def all_ends(ends: tuple[int, ...], model: Any) -> int | list[int] | None:
    """Return the `eos_token_id` of a model that ends completions with `ends` and with its own end tokens."""
    found = list(dict.fromkeys([*ends, *end_ids(model)]))
    return found if len(found) > 1 else next(iter(found), None)


def _check_separable(config: NewCausalConfig | PretrainedCausalConfig) -> None:
    if config.lora is None:
        raise ConfigError("--adapters apart: the run has no adapters (method.model.lora). Leave the option out.")
    if isinstance(config, NewCausalConfig):
        raise ConfigError(
            "--adapters apart: the base weights are random and come from the run's seed, so nobody else "
            "has them. Leave the option out: the adapters are then added to them."
        )


def _save_adapters(model: Any, folder: Path, heads: tuple[str, ...]) -> None:
    adapters = next(module.peft_config for module in model.modules() if hasattr(module, "peft_config"))["default"]
    adapters.task_type = "SEQ_CLS" if heads else "CAUSAL_LM"
    adapters.base_model_name_or_path = None  # a path of this machine
    adapters.inference_mode = True
    adapters.modules_to_save = list(heads) or None
    adapters.save_pretrained(str(folder))
    trained = {
        f"base_model.model.{name.replace('.default.', '.')}": weight.detach().contiguous()
        for name, weight in model.named_parameters()
        if ".lora_" in name or name.startswith(tuple(f"{head}." for head in heads))
    }
    save_file(trained, folder / _WEIGHTS, metadata={"format": "pt"})


def tokenization_difference(folder: Path, tokenizer: Tokenizer, texts: Sequence[str]) -> str | None:
    """Describe the first text that the folder's AutoTokenizer encodes differently from `tokenizer`; None if
    there is none."""
    from transformers import AutoTokenizer  # here, for ranks import this module and need none

    verbosity = hf_logging.get_verbosity()
    try:
        hf_logging.set_verbosity_error()  # it warns about our own `model_type`
        auto = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except Exception as error:  # transformers' readers raise many types
        return f"transformers' AutoTokenizer cannot load it ({error!s:.200})"
    finally:
        hf_logging.set_verbosity(verbosity)
    for text in texts:
        for is_whole in (True, False):
            expected = tokenizer.encode(text, add_special_tokens=is_whole).ids
            found = auto(text, add_special_tokens=is_whole)["input_ids"]
            if found != expected:
                begin = common_length(found, expected)
                ids = f"{found[begin : begin + 5]}, not {expected[begin : begin + 5]}"
                named = f"transformers' AutoTokenizer ({type(auto).__name__}) encodes {text[:40]!r} otherwise"
                return f"{named}: its tokens from number {begin} are {ids}"
    return None


def keep_tokenization(folder: Path, tokenizer: Tokenizer, texts: Sequence[str]) -> None:
    """Make AutoTokenizer load an exported folder's `tokenizer.json` as it is; raise `ConfigError` if that fails."""
    if tokenization_difference(folder, tokenizer, texts) is None:
        return
    # Some versions of transformers ignore tokenizer_config.json for this architecture unless auto_map names a class.
    # The class loads tokenizer.json with and without trust_remote_code.
    settings = json.loads((folder / SETTINGS_FILE).read_text(encoding="utf-8"))
    settings["auto_map"] = {"AutoTokenizer": [None, f"{Path(MODULE_FILE).stem}.TokenizerAsSaved"]}
    (folder / SETTINGS_FILE).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    (folder / MODULE_FILE).write_text(_MODULE, encoding="utf-8")
    if (difference := tokenization_difference(folder, tokenizer, texts)) is not None:
        raise ConfigError(
            f"the export would not be read as it was trained: {difference}. Train with the tokenizer of a "
            "model of this architecture, or with another method.model.architecture, e.g. llama."
        )
