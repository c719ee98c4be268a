"""Did the model see the benchmark? N-grams of held-out text that stand in the training data, too.

    held-out text -> words -> n-grams -> sorted hashes  \\
                                                          found? -> by block, and over all
    training rows -> text -> words -> n-grams -> hashes /

Thirteen words in a row are rarely the same by chance (Brown et al. 2020, appendix C, used 13), but in source
code licence headers and boilerplate are: so the share is reported beside the number, with the score over the
blocks that are clean, and nobody is judged by it alone. Training data streams by; only the benchmark's hashes
are kept in memory.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import xxhash
from tokenizers import Tokenizer

from assay.base.digest import sha256_of_json
from assay.base.errors import ConfigError, DataError
from assay.base.seeds import Keys, mix64
from assay.data.dataset.columns import TOKENS
from assay.data.dataset.dataset import Dataset
from assay.evaluation.evidence.benchmark_items import ItemScore
from assay.records.benchmark import Contamination

ITEM_THRESHOLD = 0.5
MAX_NAMED_ITEMS = 100
_WORD = re.compile(r"\w+|[^\w\s]")
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class HeldOut(NamedTuple):
    """A held-out text, cut into items."""

    text: str
    borders: npt.NDArray[np.int64]
    """Bytes where items begin, and the text's end."""
    item_ids: tuple[str, ...]


class TrainingText(Protocol):
    """What a model was trained on, as texts."""

    @property
    def fingerprint(self) -> str:
        """Names it in records."""
        ...

    def texts(self) -> Iterator[str]:
        """Every text, in any order."""
        ...


class TextFiles:
    """Training text in files."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Files, or folders whose files are all meant; what is no UTF-8 is read as well as can be."""
        self._paths = sorted(file for path in paths for file in (_files_of(path)))
        if not self._paths:
            raise ConfigError("no training text to search: the folders that were named hold no files.")

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the files' names and sizes."""
        return sha256_of_json([[str(path), path.stat().st_size] for path in self._paths])

    def texts(self) -> Iterator[str]:
        """A file each."""
        for path in self._paths:
            yield path.read_text(encoding="utf-8", errors="replace")


class DatasetText:
    """Training text in a dataset's tokens, spelled back by its tokenizer."""

    def __init__(self, dataset: Dataset, tokenizer: Tokenizer) -> None:
        """`ConfigError` where the tokens cannot be this tokenizer's."""
        if dataset.manifest.max_token_id >= tokenizer.get_vocab_size():
            raise ConfigError(
                f"dataset '{dataset.manifest.name}' holds token {dataset.manifest.max_token_id}, but the "
                f"tokenizer has {tokenizer.get_vocab_size()}. Name the one that the dataset was built with."
            )
        self._dataset = dataset
        self._tokenizer = tokenizer

    @property
    def fingerprint(self) -> str:
        """The dataset's."""
        return self._dataset.fingerprint

    def texts(self) -> Iterator[str]:
        """A row each."""
        for group in range(len(self._dataset.groups)):
            column = self._dataset.read_row_group(group, [TOKENS])[TOKENS]
            yield from self._tokenizer.decode_batch(column.to_pylist())


def contamination(
    held_out: Sequence[HeldOut], items: Sequence[ItemScore], training: TrainingText, *, ngram: int
) -> Contamination:
    """How much of held-out texts the training text holds; `items` are their scores.

    An n-gram belongs to the item in which it starts.
    """
    hashes = [ngram_hashes(document.text, ngram) for document in held_out]
    found = _found([np.zeros(0, np.uint64), *hashes], training, ngram)
    shares: dict[str, float] = {}
    for document, of_document in zip(held_out, hashes, strict=True):
        starts = _word_starts(document.text)[: len(of_document)]
        items_of = np.searchsorted(document.borders, starts, side="right") - 1
        hits = np.isin(of_document, found)
        for index, item_id in enumerate(document.item_ids):
            if (mine := hits[items_of == index]).size:
                shares[item_id] = float(mine.mean())
    leaked = sorted((name for name in shares if shares[name] >= ITEM_THRESHOLD), key=lambda name: -shares[name])
    clean = [item for item in items if item.score is not None and item.item_id not in set(leaked)]
    weights = [item.weight for item in clean]
    return Contamination(
        dataset_fingerprint=training.fingerprint,
        unit="words",
        ngram=ngram,
        num_ngrams=sum(len(each) for each in hashes),
        num_found=sum(int(np.isin(each, found).sum()) for each in hashes),
        items_found=tuple(leaked[:MAX_NAMED_ITEMS]),
        num_items_found=len(leaked),
        item_threshold=ITEM_THRESHOLD,
        score_without=float(np.average([item.score for item in clean], weights=weights)) if clean else None,
    )


def ngram_hashes(text: str, ngram: int) -> Keys:
    """A 64-bit hash of every n words in a row; empty where the text is shorter.

    Case and white space are ignored. Words are hashed once each and combined by a polynomial, so that long
    texts cost a few passes of NumPy.
    """
    words = _WORD.findall(text)
    count = len(words) - ngram + 1
    if count <= 0:
        return np.zeros(0, np.uint64)
    known: dict[str, int] = {}
    codes = np.array([known.setdefault(word, len(known)) for word in words], np.int64)
    by_code = np.array([xxhash.xxh3_64_intdigest(word.lower().encode()) for word in known], np.uint64)
    values = mix64(by_code)[codes]
    hashes: npt.NDArray[np.uint64] = np.zeros(count, np.uint64)
    for offset in range(ngram):
        hashes = hashes * _MULTIPLIER + values[offset : offset + count]
    return hashes


def _found(hashes: Sequence[Keys], training: TrainingText, ngram: int) -> Keys:
    """Those that occur in the training text, sorted."""
    wanted = np.unique(np.concatenate(hashes))
    is_found = np.zeros(len(wanted), bool)
    for text in training.texts() if len(wanted) else ():
        seen = ngram_hashes(text, ngram)
        places = np.minimum(np.searchsorted(wanted, seen), len(wanted) - 1)
        is_found[places[wanted[places] == seen]] = True
    return wanted[is_found]


def _word_starts(text: str) -> npt.NDArray[np.int64]:
    """The byte where each word starts."""
    bytes_before = np.cumsum([0, *(len(character.encode()) for character in text)])
    starts = [match.start() for match in _WORD.finditer(text)]
    return bytes_before[np.array(starts, np.int64)].astype(np.int64)


def _files_of(path: Path) -> list[Path]:
    if path.is_dir():
        return [file for file in path.rglob("*") if file.is_file()]
    if not path.is_file():
        raise DataError(f"{path}: no such file or folder. Name the text that the model was trained on.")
    return [path]
