"""The tokens of a language model's folder: vocabulary size, begin tokens and end tokens.

    tokenizer.json           -> begin: the tokens that the post-processor adds; never `bos_token_id`, which many
                                configurations name although no text begins with it
    config.json, generation_config.json, tokenizer_config.json, chat template -> ends: the union of all

Imports no torch, because recipes and base models are checked without loading a model.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from assay.base.config import dotted_leaves
from assay.base.errors import AssayError, ConfigError
from assay.base.installed import installed_path
from assay.data.dataset.columns import sequences_of
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.formats.template import ChatTemplate, tokenizer_template
from assay.data.dataset.tokens import (
    TOKENIZER_FILE,
    end_tokens,
    json_object,
    load_tokenizer,
    special_tokens,
    tokenizer_settings,
)
from assay.records.dataset import DatasetManifest

DIFFICULT = ("Hello world 2024", " hello  world .", "don't café ﬁ\n\n\tx", "x = 100_000;  // !")
"""Numbers, white space, accents and contractions, on which pre-tokenizers and normalizers differ."""
_SAMPLED_ROWS, _SAMPLED_TOKENS = 16, 512
_USER, _ASSISTANT = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Quux"}


def begin_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens that the tokenizer adds before a text."""
    encoding = tokenizer.encode("a")
    is_added = zip(encoding.ids, encoding.special_tokens_mask, strict=True)
    return tuple(token for token, _ in takewhile(lambda pair: pair[1], is_added))


def turn_end_ids(template: ChatTemplate | None, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the control token that the chat template writes after an assistant message, if there is one."""
    text = ""
    if template is not None:
        with suppress(AssayError):
            text = template.render([_USER, _ASSISTANT], {}, "a probe")
    suffix = text.rpartition(_ASSISTANT["content"])[2] if _ASSISTANT["content"] in text else ""
    added = tokenizer.get_added_tokens_decoder()
    found = [token for token in tokenizer.encode(suffix, add_special_tokens=False).ids if token in added]
    return tuple(found[:1])


def folder_end_ids(folder: Path) -> tuple[int, ...]:
    """Return all tokens that a model folder declares as the end of a completion."""
    ends = list(configured_end_ids(folder))
    if (folder / TOKENIZER_FILE).is_file():
        tokenizer, special = load_tokenizer(folder), special_tokens(tokenizer_settings(folder))
        ends += end_tokens(folder)
        with suppress(ConfigError):  # an unreadable template is reported when it renders
            ends += turn_end_ids(tokenizer_template(folder, special), tokenizer)
    return tuple(dict.fromkeys(ends))


def dataset_end_ids(manifest: DatasetManifest, tokenizer: Path) -> tuple[int, ...]:
    """Return the end tokens for a model trained on a dataset, the most frequent one first.

    `tokenizer` is the dataset's. If the manifest records no ends, they come from the chat template.
    """
    special = special_tokens(tokenizer_settings(tokenizer))
    if manifest.boundaries is not None:
        ends = list(manifest.boundaries.end_ids)
    else:
        template = tokenizer_template(tokenizer, special) if manifest.chat_template_sha256 else None
        ends = list(turn_end_ids(template, load_tokenizer(tokenizer)))
    return tuple(dict.fromkeys([*ends, *end_tokens(tokenizer)]))


def sample_texts(dataset: Dataset, tokenizer: Path) -> list[str]:
    """Return texts for comparing tokenizers: the first rows, detokenized, and difficult examples."""
    table = dataset.read_row_group(0, sequences_of(dataset.manifest.columns))
    rows = [ids for column in table.columns for ids in column.slice(0, _SAMPLED_ROWS).to_pylist()]
    texts = load_tokenizer(tokenizer).decode_batch([ids[:_SAMPLED_TOKENS] for ids in rows], False)
    return [*texts, *DIFFICULT]


def configured_end_ids(folder: Path) -> Iterator[int]:
    """Yield `eos_token_id` of `config.json` and `generation_config.json`."""
    for name in ("config.json", "generation_config.json"):
        ends = json_object(folder / name).get("eos_token_id")
        yield from (end for end in (ends if isinstance(ends, list) else [ends]) if isinstance(end, int))


def special_token_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Return special tokens, which detokenization leaves out -> their ids."""
    added = tokenizer.get_added_tokens_decoder().items()
    return {token.content: number for number, token in added if token.special}


def embedding_counts(method: Mapping[str, Any]) -> dict[str, int]:
    """Return method key -> vocabulary size of the model that it names, for new models and model folders."""
    found: dict[str, int] = {}
    for key, value in dotted_leaves(method):
        if key.endswith(".vocab_size") and isinstance(value, int):
            found[key.removesuffix(".vocab_size")] = value
        elif key.endswith(".path") and isinstance(value, str):
            size = json_object(installed_path(value) / "config.json").get("vocab_size")
            found |= {key.removesuffix(".path"): size} if isinstance(size, int) else {}
    return found


def num_token_ids(tokenizer: Tokenizer) -> int:
    """Return the number of embeddings that a model needs; ids of some vocabularies have gaps."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def check_embeddings(tokenizer: Tokenizer, num_embeddings: int, *, where: str) -> None:
    """Raise `ConfigError` if the tokenizer has ids beyond the model's embeddings."""
    if (number := num_token_ids(tokenizer) - 1) >= num_embeddings:
        token = tokenizer.id_to_token(number)
        raise ConfigError(
            f"{where}: its tokenizer has tokens up to number {number:,} ({token!r}), and the model has "
            f"embeddings for {num_embeddings:,} (vocab_size). Use the model's own tokenizer, or resize its "
            "embeddings (resize_token_embeddings of transformers)."
        )
