"""Loads and trains tokenizers with the `tokenizers` library alone."""

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
"""End-of-text token of newly trained tokenizers."""
TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"
"""Names the special tokens, and often holds a chat template; stored next to the tokenizer."""
NEW = "new:"
_SMALLEST = 300
"""Smallest vocabulary: all bytes, the special tokens, and some merges."""
_TRIMS = re.compile(r'("trim_offsets"\s*:\s*)true')


class KnownTokenizer(NamedTuple):
    """The tokenizer of a dataset."""

    path: Path
    sha256: str
    is_proved: bool
    """Whether the manifest holds its digest."""


def new_vocabulary(name: str) -> int | None:
    """Return the vocabulary size of `new:8000`; None for the name of an existing tokenizer."""
    if not name.startswith(NEW):
        return None
    size = name.removeprefix(NEW).replace(",", "").replace("_", "")
    if not size.isdecimal() or not _SMALLEST <= int(size) <= 1_000_000:
        raise ConfigError(
            f"--tokenizer {name}: expected the size of the vocabulary, {_SMALLEST} to 1000000, e.g. {NEW}8000."
        )
    return int(size)


def tokenizer_file(name: str | Path) -> Path:
    """Resolve a name to a `tokenizer.json`: a file, a folder that holds one, or `package:NAME/FOLDER`."""
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
    """Load a tokenizer (see `tokenizer_file`) without truncation and padding.

    `trim_offsets` is turned off, so that a token's offsets include its leading space.
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
    """Return the explicit tokenizer, or the dataset's own; it must match the digest in the manifest, if any.

    `hint` completes the error if there is none.
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
    raise ConfigError(
        f"the tokenizer of dataset '{manifest.name}' is neither in {folder} nor in its parent folder. {hint}"
    )


def tokenizer_settings(name: str | Path) -> dict[str, Any]:
    """Return the `tokenizer_config.json` next to the tokenizer; empty if there is none."""
    return json_object(tokenizer_file(name).parent / SETTINGS_FILE)


def json_object(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file of a model folder; empty if there is no such file."""
    if not file.is_file():
        return {}
    try:
        found = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}. Fix it, or copy it from its source.") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{file}: holds no JSON object. Fix it, or copy it from its source.")
    return found


def special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return special token names (`eos_token`, ...) -> token text."""
    found = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in settings.items()
        if name.endswith("_token")
    }
    return {name: value for name, value in found.items() if isinstance(value, str)}


def end_tokens(name: str | Path) -> tuple[int, ...]:
    """Return the id of the `eos_token` in `tokenizer_config.json`, if there is one."""
    end = special_tokens(tokenizer_settings(name)).get("eos_token")
    number = None if end is None else load_tokenizer(name).token_to_id(end)
    return () if number is None else (number,)


def train_tokenizer(texts: Iterable[str], *, vocab_size: int, special: Sequence[str] = ()) -> Tokenizer:
    """Train a byte-level BPE tokenizer, in which token 0 is padding and no text is unknown.

    The result does not depend on the order of the texts.
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
