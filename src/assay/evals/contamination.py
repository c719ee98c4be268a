"""Contamination check: n-grams of held-out text that also occur in the training data.

    held-out text -> words -> n-grams -> sorted hashes  \\
                                                          found? -> by item, and over all
    training rows -> text -> words -> n-grams -> hashes /

Words are compared without features that may differ between copies of a text: case, markup, punctuation, hyphens, and
the encoding of a character in Unicode or JSON. In scripts without spaces, characters count as words.

Thirteen consecutive words rarely coincide by accident (Brown et al. 2020, appendix C, used 13), but licence headers and
boilerplate in source code do. The share is therefore reported with the score over the clean items, and nothing is
decided by it alone. An item with fewer words has no n-gram: it is not searched, and is counted separately. The training
data is streamed; only the benchmark's hashes are kept in memory.
"""

import html
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import xxhash
from tokenizers import Tokenizer

from assay.base.digest import sha256_of_json
from assay.base.errors import ConfigError, DataError
from assay.base.seeds import Keys, mix64
from assay.base.words import without_invisible, words_of
from assay.data.dataset.columns import TOKENS
from assay.data.dataset.dataset import Dataset
from assay.records.benchmark import Contamination
from assay.statistics.benchmark_items import ItemScore

NGRAM = 13
ITEM_THRESHOLD = 0.5
MAX_NAMED_ITEMS = 100
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_ESCAPED_CHARACTERS = re.compile(r"(?:\\+u[0-9a-fA-F]{4})+")
_MARKUP = re.compile(
    r"</?[A-Za-z][^<>\n]{0,300}>"
    r"|\]\([^()\s]{0,300}\)"  # where a link of Markdown leads
    r"|\\+(?:emph|underline|text(?:bf|it|tt|rm|sf|sc)?|math(?:bf|it|tt|rm|sf|cal|bb))\s*\{"
    r"|\\+[nrt]"
)
_PARTED_WORD = re.compile(r"(?<=\w)[-\u2010]\s*\n\s*(?=\w)")
_MAX_BYTES_TO_SPACE = 100


class HeldOut(NamedTuple):
    """A held-out text, cut into items."""

    text: str
    boundaries: npt.NDArray[np.int64]
    """Byte offsets at which items start, and the end of the text."""
    item_ids: tuple[str, ...]
    """An item may have several texts."""


def prompts(texts: Mapping[str, Sequence[str]]) -> list[HeldOut]:
    """Return items with their texts, without texts that all items share (instructions, examples)."""
    shared = set.intersection(*map(set, texts.values())) if len(texts) > 1 else set()
    return [
        HeldOut(text, np.array([0, len(_encoded(text))], np.int64), (item_id,))
        for item_id, own in texts.items()
        for text in own
        if text not in shared
    ]


class TrainingText(Protocol):
    """The texts that a model was trained on."""

    @property
    def fingerprint(self) -> str:
        """Identifies it in records."""
        ...

    def texts(self) -> Iterator[str]:
        """Return every text, in any order."""
        ...


class TextFiles:
    """Training text in files."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Takes files, or folders with all their files; invalid UTF-8 is replaced."""
        self._paths = sorted(file for path in paths for file in (_files_of(path)))
        if not self._paths:
            raise ConfigError("no training text to search: the folders that were named hold no files.")

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the files' names and sizes."""
        return sha256_of_json([[str(path), path.stat().st_size] for path in self._paths])

    def texts(self) -> Iterator[str]:
        for path in self._paths:
            yield path.read_text(encoding="utf-8", errors="replace")


class DatasetText:
    """Training text in a dataset's tokens, decoded by its tokenizer."""

    def __init__(self, dataset: Dataset, tokenizer: Tokenizer) -> None:
        """Raises `ConfigError` if the tokens cannot be this tokenizer's."""
        if dataset.manifest.max_token_id >= tokenizer.get_vocab_size():
            raise ConfigError(
                f"dataset '{dataset.manifest.name}' holds token {dataset.manifest.max_token_id}, but the "
                f"tokenizer has {tokenizer.get_vocab_size()}. Name the one that the dataset was built with."
            )
        self._dataset = dataset
        self._tokenizer = tokenizer

    @property
    def fingerprint(self) -> str:
        return self._dataset.fingerprint

    def texts(self) -> Iterator[str]:
        for group in range(len(self._dataset.groups)):
            column = self._dataset.read_row_group(group, [TOKENS])[TOKENS]
            yield from self._tokenizer.decode_batch(column.to_pylist())


def contamination(
    held_out: Sequence[HeldOut], items: Sequence[ItemScore], training: TrainingText | None, *, ngram: int = NGRAM
) -> Contamination | None:
    """Return how much of the held-out texts occurs in the training text; None without one. `items` are their scores.

    An n-gram belongs to the item in which it starts.
    """
    if training is None:
        return None
    ids = list(dict.fromkeys(item_id for document in held_out for item_id in document.item_ids))
    item_indices = {item_id: index for index, item_id in enumerate(ids)}
    cut = [_item_ngrams(document, item_indices, ngram) for document in held_out]
    hashes = np.concatenate([np.zeros(0, np.uint64), *(hashes for hashes, _ in cut)])
    owners = np.concatenate([np.zeros(0, np.int64), *(items for _, items in cut)])
    hits = np.isin(hashes, _found(hashes, training, ngram))
    sizes = np.bincount(owners, minlength=len(ids))
    shares = np.bincount(owners, weights=hits, minlength=len(ids)) / np.maximum(sizes, 1)
    leaked = [ids[index] for index in np.argsort(-shares, kind="stable") if shares[index] >= ITEM_THRESHOLD]
    unclean = set(leaked)
    clean = [item for item in items if item.score is not None and item.item_id not in unclean]
    weights = [item.weight for item in clean]
    return Contamination(
        dataset_fingerprint=training.fingerprint,
        unit="words",
        ngram=ngram,
        num_ngrams=len(hashes),
        num_found=int(hits.sum()),
        num_items=max(len(ids), len(items)),
        num_items_searched=int((sizes > 0).sum()),
        items_found=tuple(leaked[:MAX_NAMED_ITEMS]),
        num_items_found=len(leaked),
        item_threshold=ITEM_THRESHOLD,
        score_without=float(np.average([item.score for item in clean], weights=weights)) if clean else None,
    )


def compared_words(text: str) -> list[str]:
    """Return the words of a text in the form in which copies are compared."""
    text = _in_one_form(text)
    text = _ESCAPED_CHARACTERS.sub(_unescaped, text) if "\\" in text else text
    text = _in_one_form(html.unescape(_MARKUP.sub(" ", text)))
    return words_of(_PARTED_WORD.sub("", text).casefold(), signs=False)


def ngram_hashes(words: Sequence[str], ngram: int) -> Keys:
    """Return a 64-bit hash of every n consecutive words; empty if there are fewer.

    Each word is hashed once, and hashes are combined by a polynomial, so long texts cost a few passes of NumPy.
    """
    count = len(words) - ngram + 1
    if count <= 0:
        return np.zeros(0, np.uint64)
    known: dict[str, int] = {}
    codes = np.array([known.setdefault(word, len(known)) for word in words], np.int64)
    by_code = np.array([xxhash.xxh3_64_intdigest(_encoded(word)) for word in known], np.uint64)
    values = mix64(by_code)[codes]
    hashes: npt.NDArray[np.uint64] = np.zeros(count, np.uint64)
    for offset in range(ngram):
        hashes = hashes * _MULTIPLIER + values[offset : offset + count]
    return hashes


def _item_ngrams(document: HeldOut, item_indices: Mapping[str, int], ngram: int) -> tuple[Keys, npt.NDArray[np.int64]]:
    """Return the n-grams of a text, and the item in which each starts."""
    words: list[str] = []
    owners: list[int] = []
    for item_id, piece in zip(document.item_ids, _pieces(document), strict=True):
        of_piece = compared_words(piece)
        words += of_piece
        owners += [item_indices[item_id]] * len(of_piece)
    hashes = ngram_hashes(words, ngram)
    return hashes, np.array(owners[: len(hashes)], np.int64)


def _pieces(document: HeldOut) -> Iterator[str]:
    """Return the text of each item; a word belongs to the item in which it starts."""
    data = _encoded(document.text)
    inner_boundaries = [_next_space(data, boundary) for boundary in document.boundaries[1:-1].tolist()]
    cuts = [0, *inner_boundaries, len(data)]
    for start, stop in pairwise(cuts):
        yield data[start:stop].decode(errors="surrogatepass")


def _next_space(data: bytes, boundary: int) -> int:
    """Return the first white space after a boundary, or the next whole character if there is none nearby."""
    found = re.compile(rb"\s").search(data, boundary, boundary + _MAX_BYTES_TO_SPACE)
    if found is not None:
        return found.start()
    while boundary < len(data) and data[boundary] & 0xC0 == 0x80:
        boundary += 1
    return boundary


def _found(hashes: Keys, training: TrainingText, ngram: int) -> Keys:
    """Return the hashes that occur in the training text, sorted."""
    sorted_hashes = np.unique(hashes)
    is_found = np.zeros(len(sorted_hashes), bool)
    for text in training.texts() if len(sorted_hashes) else ():
        seen = ngram_hashes(compared_words(text), ngram)
        positions = np.minimum(np.searchsorted(sorted_hashes, seen), len(sorted_hashes) - 1)
        is_found[positions[sorted_hashes[positions] == seen]] = True
    return sorted_hashes[is_found]


def _in_one_form(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFKC", without_invisible(text))


def _unescaped(match: re.Match[str]) -> str:
    """Return the characters that JSON wrote as code points."""
    numbers = "".join(match.group().replace("\\", "").split("u"))
    return bytes.fromhex(numbers).decode("utf-16-be", errors="replace")


def _encoded(text: str) -> bytes:
    """Return UTF-8, including the surrogates that JSON can hold."""
    return text.encode(errors="surrogatepass")


def _files_of(path: Path) -> list[Path]:
    if path.is_dir():
        return [file for file in path.rglob("*") if file.is_file()]
    if not path.is_file():
        raise DataError(f"{path}: no such file or folder. Name the text that the model was trained on.")
    return [path]
