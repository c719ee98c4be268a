"""Text to tokens, with any Hugging Face tokenizer, by the `tokenizers` library alone."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from assay.base.errors import ConfigError

UNKNOWN, PADDING, START = "[UNK]", "[PAD]", "[CLS]"


def tokenizer_file(path: Path) -> Path:
    """The `tokenizer.json` that is meant: itself, or the one in a folder."""
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"{file}: no tokenizer there. Name a tokenizer.json or a folder with one.")
    return file


def load_tokenizer(path: Path) -> Tokenizer:
    """From a `tokenizer.json`, or a folder that holds one; neither truncates nor pads."""
    file = tokenizer_file(path)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise ConfigError(f"{file}: not a tokenizer of the 'tokenizers' library: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def train_tokenizer(texts: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """A byte-level BPE (any text encodes, none is unknown), padding first, so that token 0 is padding."""
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
