"""Text to tokens, with any Hugging Face tokenizer, by the `tokenizers` library alone."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from assay.base.errors import ConfigError
from assay.base.installed import installed_path

UNKNOWN, PADDING, START = "[UNK]", "[PAD]", "[CLS]"
TOKENIZER_FILE = "tokenizer.json"
NEW = "new:"
_SMALLEST = 300
"""All bytes, the special tokens, and some to learn."""


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
    return file


def load_tokenizer(name: str | Path) -> Tokenizer:
    """See `tokenizer_file`; neither truncates nor pads."""
    file = tokenizer_file(name)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise ConfigError(f"{file}: not a tokenizer of the 'tokenizers' library: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def train_tokenizer(texts: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """A byte-level BPE (any text encodes, none is unknown), padding first, so that token 0 is padding.

    The same texts in any order give the same tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PADDING, START],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
