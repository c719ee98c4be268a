"""The tokens of a language model's folder: how many there are, what begins texts, and what ends completions.

    tokenizer.json           -> begin: what the post-processor puts before a text; never `bos_token_id`, which
                                many configurations name and no text begins with
    config.json, generation_config.json, tokenizer_config.json, chat template -> ends: any of what they name

Imports no torch: recipes and base models are checked with it where neither is loaded.
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
"""Numbers, blanks, accents and contractions: pre-tokenizers and normalizers differ in them."""
_SAMPLED_ROWS, _SAMPLED_TOKENS = 16, 512
_USER, _ASSISTANT = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Quux"}


def begin_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """What the tokenizer puts before a text."""
    encoding = tokenizer.encode("a")
    is_added = zip(encoding.ids, encoding.special_tokens_mask, strict=True)
    return tuple(token for token, _ in takewhile(lambda pair: pair[1], is_added))


def turn_end_ids(template: ChatTemplate | None, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The control token that a chat template writes behind what the assistant says, if there is one."""
    text = ""
    if template is not None:
        with suppress(AssayError):
            text = template.render([_USER, _ASSISTANT], {}, "a probe")
    behind = text.rpartition(_ASSISTANT["content"])[2] if _ASSISTANT["content"] in text else ""
    added = tokenizer.get_added_tokens_decoder()
    found = [token for token in tokenizer.encode(behind, add_special_tokens=False).ids if token in added]
    return tuple(found[:1])


def folder_end_ids(folder: Path) -> tuple[int, ...]:
    """Every token that a model folder says ends a completion."""
    ends = list(configured_end_ids(folder))
    if (folder / TOKENIZER_FILE).is_file():
        tokenizer, special = load_tokenizer(folder), special_tokens(tokenizer_settings(folder))
        ends += end_tokens(folder)
        with suppress(ConfigError):  # a template that cannot be read is refused where it renders
            ends += turn_end_ids(tokenizer_template(folder, special), tokenizer)
    return tuple(dict.fromkeys(ends))


def dataset_end_ids(manifest: DatasetManifest, tokenizer: Path) -> tuple[int, ...]:
    """What ends a completion of a model that is trained on a dataset, the most frequent end of its rows first.

    `tokenizer` is the dataset's. The chat template tells of a dataset without recorded ends.
    """
    special = special_tokens(tokenizer_settings(tokenizer))
    if manifest.boundaries is not None:
        ends = list(manifest.boundaries.end_ids)
    else:
        template = tokenizer_template(tokenizer, special) if manifest.chat_template_sha256 else None
        ends = list(turn_end_ids(template, load_tokenizer(tokenizer)))
    return tuple(dict.fromkeys([*ends, *end_tokens(tokenizer)]))


def sample_texts(dataset: Dataset, tokenizer: Path) -> list[str]:
    """Texts to compare tokenizers by: the first rows, detokenized, and what tokenizers often differ in."""
    table = dataset.read_row_group(0, sequences_of(dataset.manifest.columns))
    rows = [ids for column in table.columns for ids in column.slice(0, _SAMPLED_ROWS).to_pylist()]
    texts = load_tokenizer(tokenizer).decode_batch([ids[:_SAMPLED_TOKENS] for ids in rows], False)
    return [*texts, *DIFFICULT]


def configured_end_ids(folder: Path) -> Iterator[int]:
    """`eos_token_id` of `config.json` and `generation_config.json`."""
    for name in ("config.json", "generation_config.json"):
        ends = json_object(folder / name).get("eos_token_id")
        yield from (end for end in (ends if isinstance(ends, list) else [ends]) if isinstance(end, int))


def special_token_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Tokens that a detokenized text leaves out -> their numbers."""
    added = tokenizer.get_added_tokens_decoder().items()
    return {token.content: number for number, token in added if token.special}


def embedding_counts(method: Mapping[str, Any]) -> dict[str, int]:
    """Key of a recipe's method -> tokens that the model it names has embeddings for, new or in a folder."""
    found: dict[str, int] = {}
    for key, value in dotted_leaves(method):
        if key.endswith(".vocab_size") and isinstance(value, int):
            found[key.removesuffix(".vocab_size")] = value
        elif key.endswith(".path") and isinstance(value, str):
            size = json_object(installed_path(value) / "config.json").get("vocab_size")
            found |= {key.removesuffix(".path"): size} if isinstance(size, int) else {}
    return found


def num_token_ids(tokenizer: Tokenizer) -> int:
    """Embeddings that a model needs for all tokens: some vocabularies have holes."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def refuse_larger(tokenizer: Tokenizer, num_embeddings: int, *, where: str) -> None:
    """Raise `ConfigError` where a model has no embedding for some token of its tokenizer."""
    if (number := num_token_ids(tokenizer) - 1) >= num_embeddings:
        token = tokenizer.id_to_token(number)
        raise ConfigError(
            f"{where}: its tokenizer has tokens up to number {number:,} ({token!r}), and the model has "
            f"embeddings for {num_embeddings:,} (vocab_size). Use the model's own tokenizer, or resize its "
            "embeddings (resize_token_embeddings of transformers)."
        )
