"""Checks that transformers' AutoTokenizer reads a model's folder as training did, token by token.

transformers chooses a tokenizer's class by the model's architecture. Some classes load `tokenizer.json` as it
is; others rebuild it with their own normalizer and pre-tokenizer, whatever its settings say.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoTokenizer
from transformers.utils import logging as hf_logging

from assay.base.errors import ConfigError
from assay.data.dataset.formats.conversation_parts import common_length
from assay.data.dataset.tokens import SETTINGS_FILE

MODULE_FILE = "tokenization_as_saved.py"
_MODULE = '''\
"""transformers would rebuild this folder's tokenizer as its architecture's usual one. This class loads
tokenizer.json as it is."""

from transformers import PreTrainedTokenizerFast


class TokenizerAsSaved(PreTrainedTokenizerFast):
    pass
'''


def tokenization_difference(folder: Path, tokenizer: Tokenizer, texts: Sequence[str]) -> str | None:
    """Describe the first text that the folder's AutoTokenizer encodes differently from `tokenizer`; None if
    there is none."""
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
