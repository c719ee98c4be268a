"""Text to tokens, with any Hugging Face tokenizer, by the `tokenizers` library alone."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from assay.base.digest import sha256_of_bytes
from assay.base.errors import ConfigError
from assay.base.installed import installed_path
from assay.base.parsing.nesting import parse_json
from assay.records.dataset import DatasetManifest
from assay.store.model_folder import SETTINGS, whole_export

UNKNOWN, PADDING, START = "[UNK]", "[PAD]", "[CLS]"
END = "<|endoftext|>"
"""The end of texts, in a tokenizer that is trained on them for a language model."""
TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"
"""Beside the tokenizer: which of its tokens are special, and often a chat template."""
NEW = "new:"
_SMALLEST = 300
"""All bytes, the special tokens, and some to learn."""
_TRIMS = re.compile(r'("trim_offsets"\s*:\s*)true')


class KnownTokenizer(NamedTuple):
    """The tokenizer that a dataset's rows were made with."""

    path: Path
    sha256: str
    is_proved: bool
    """The manifest names it."""


def new_vocabulary(name: str) -> int | None:
    """The size behind `new:8000`; None for a tokenizer that there is."""
    if not name.startswith(NEW):
        return None
    size = name.removeprefix(NEW).replace(",", "").replace("_", "")
    if not size.isdecimal() or not _SMALLEST <= int(size) <= 1_000_000:
        raise ConfigError(
            f"--tokenizer {name}: expected the size of the vocabulary, {_SMALLEST} to 1000000, e.g. {NEW}8000."
        )
    return int(size)


def tokenizer_file(name: str | Path) -> Path:
    """The `tokenizer.json` that is meant: itself, the one in a folder, or `package:NAME/FOLDER`'s."""
    path = installed_path(str(name))
    file = path / TOKENIZER_FILE if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(
            f"{file}: no tokenizer there. Name a tokenizer.json, a folder or package:NAME/FOLDER with one, or "
            f"train one on the texts: {NEW}8000."
        )
    whole_export(file.parent, only=SETTINGS)
    return file


def load_tokenizer(name: str | Path) -> Tokenizer:
    """See `tokenizer_file`; neither truncates nor pads.

    Offsets are those of whole tokens: some tokenizers leave out a word's space, which then lies in no token.
    """
    file = tokenizer_file(name)
    try:
        text = file.read_text(encoding="utf-8")
        tokenizer = Tokenizer.from_str(_TRIMS.sub(r"\1false", text))
    except Exception as error:  # the library raises plain Exception
        raise ConfigError(f"{file}: not a tokenizer of the 'tokenizers' library: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def tokenizer_of(folder: Path, manifest: DatasetManifest, explicit: Path | None, hint: str) -> KnownTokenizer:
    """The one that is given, or lies with the dataset; where the manifest names one, it must be that.

    `cure`: what to do where there is none.
    """
    named = manifest.tokenizer_sha256
    if explicit is not None:
        path = tokenizer_file(explicit)
        sha256 = sha256_of_bytes(path.read_bytes())
        if named not in (None, sha256):
            raise ConfigError(
                f"{path}: not the tokenizer that dataset '{manifest.name}' was built with: its sha256 is "
                f"{sha256[:12]}…, the manifest says {str(named)[:12]}…."
            )
        return KnownTokenizer(path, sha256, is_proved=named == sha256)
    for path in (folder / TOKENIZER_FILE, folder.resolve().parent / TOKENIZER_FILE):
        if named is not None and path.is_file() and sha256_of_bytes(path.read_bytes()) == named:
            return KnownTokenizer(path, named, is_proved=True)
    raise ConfigError(f"the tokenizer of dataset '{manifest.name}' is neither in {folder} nor beside it. {hint}")


def tokenizer_settings(name: str | Path) -> dict[str, Any]:
    """What `tokenizer_config.json` beside the tokenizer says; nothing where there is none."""
    return json_object(tokenizer_file(name).parent / SETTINGS_FILE)


def json_object(file: Path) -> dict[str, Any]:
    """The object in one of a model folder's JSON files; nothing where there is no such file."""
    if not file.is_file():
        return {}
    try:
        found = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}. Mend it, or copy it from its source.") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{file}: holds no JSON object. Mend it, or copy it from its source.")
    return found


def special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """`eos_token` and the like -> how it is written."""
    found = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in settings.items()
        if name.endswith("_token")
    }
    return {name: value for name, value in found.items() if isinstance(value, str)}


def end_tokens(name: str | Path) -> tuple[int, ...]:
    """What ends a completion: the `eos_token` of `tokenizer_config.json` beside the tokenizer, if any."""
    end = special_tokens(tokenizer_settings(name)).get("eos_token")
    number = None if end is None else load_tokenizer(name).token_to_id(end)
    return () if number is None else (number,)


def train_tokenizer(texts: Iterable[str], *, vocab_size: int, special: Sequence[str] = ()) -> Tokenizer:
    """A byte-level BPE (any text encodes, none is unknown), padding first, so that token 0 is padding.

    The same texts in any order give the same tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PADDING, START, *special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
