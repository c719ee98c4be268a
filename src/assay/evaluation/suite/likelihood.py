"""Benchmarks answered by likelihood: multiple choice, and the bits that held-out text costs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from assay.base.digest import canonical_json, sha256_of_bytes, sha256_of_json
from assay.base.errors import DataError
from assay.evaluation.evidence.benchmark_items import ItemScore
from assay.evaluation.suite.config import BitsPerByte, MultipleChoice
from assay.evaluation.suite.contamination import HeldOut, TrainingText, contamination
from assay.evaluation.suite.contents import held_out_files
from assay.evaluation.suite.items import Item, read_items
from assay.evaluation.suite.local_model import TextBits
from assay.evaluation.suite.scorer import Identity, chunk_ranges
from assay.records.benchmark import Contamination


class LikelihoodModel(Protocol):
    """What a model must tell; `LocalModel` does."""

    def continuation_bits(self, prompt: str, continuation: str) -> tuple[float, int]:
        """Bits of a continuation given a prompt, and its tokens."""
        ...

    def text_bits(self, text: str, *, window_tokens: int | None = None) -> TextBits:
        """Bits of every token of a text."""
        ...


class MultipleChoiceScorer:
    """1 where the right choice is the likeliest, else 0; of equals, the first counts."""

    def __init__(self, config: MultipleChoice, folder: Path, model: LikelihoodModel) -> None:
        """Reads and checks the items."""
        self._path = folder / config.items
        self._items = read_items(self._path)
        self._choices = [_checked_choices(item, self._path) for item in self._items]
        self._normalise = config.normalise
        self._model = model
        self._chunks = chunk_ranges(len(self._items), config.chunk_items)
        asked = [
            [item.fields["prompt"], list(choices)]
            for item, choices in zip(self._items, self._choices, strict=True)
        ]
        self.identity = Identity(
            benchmark=config.name,
            benchmark_sha256=sha256_of_json([dict(item.fields) for item in self._items]),
            grader_sha256=sha256_of_json(["likeliest choice", config.normalise]),
            prompt_sha256=sha256_of_json(asked),
        )

    @property
    def num_chunks(self) -> int:
        """See `Scorer`."""
        return len(self._chunks)

    def score_chunk(self, chunk: int) -> list[ItemScore]:
        """See `Scorer`."""
        return [self._score(index) for index in self._chunks[chunk]]

    @property
    def training_fingerprint(self) -> None:
        """None is searched."""
        return None

    def contamination(self, items: Sequence[ItemScore]) -> Contamination | None:  # noqa: ARG002
        """Not known for prompts."""
        return None

    def close(self) -> None:
        """Nothing to give back."""

    def _score(self, index: int) -> ItemScore:
        item, choices = self._items[index], self._choices[index]
        bits = [self._bits(str(item.fields["prompt"]), choice) for choice in choices]
        chosen = int(np.argmin(bits))
        return ItemScore(
            item.item_id,
            item.cluster,
            float(chosen == item.fields["answer"]),
            answer=choices[chosen],
            details=canonical_json({"bits_of_the_right_one": bits[item.fields["answer"]]}),
        )

    def _bits(self, prompt: str, choice: str) -> float:
        bits, num_tokens = self._model.continuation_bits(prompt, choice)
        match self._normalise:
            case "bytes":
                return bits / max(1, len(choice.encode()))
            case "tokens":
                return bits / num_tokens
        return bits


class _Document(NamedTuple):
    """One held-out file."""

    name: str
    text: str


class BitsPerByteScorer:
    """A file is a chunk, its blocks are items."""

    def __init__(
        self, config: BitsPerByte, folder: Path, model: LikelihoodModel, training_text: TrainingText | None
    ) -> None:
        """Reads the files; `training_text` is what the contamination check searches, where it is known."""
        self._documents = _documents(config, folder)
        self._config = config
        self._model = model
        self._training_text = training_text
        digests = {document.name: sha256_of_bytes(document.text.encode()) for document in self._documents}
        window = config.window_tokens
        self.identity = Identity(
            benchmark=config.name,
            benchmark_sha256=sha256_of_json([digests, config.block_bytes]),
            grader_sha256=sha256_of_json(["bits per byte", config.block_bytes]),
            prompt_sha256=sha256_of_json(["half a window of context at least", window]),
            unit="bits per byte",
            higher_is_better=False,
        )

    @property
    def num_chunks(self) -> int:
        """See `Scorer`."""
        return len(self._documents)

    def score_chunk(self, chunk: int) -> list[ItemScore]:
        """See `Scorer`."""
        document = self._documents[chunk]
        found = self._model.text_bits(document.text, window_tokens=self._config.window_tokens)
        blocks = _block_borders(found.num_bytes, self._config.block_bytes)
        which = np.searchsorted(blocks, found.starts, side="right") - 1
        bits = np.bincount(which, weights=found.bits, minlength=len(blocks) - 1)
        return [
            ItemScore(
                _block_id(document.name, index), document.name, float(bits[index] / size), weight=float(size)
            )
            for index, size in enumerate(np.diff(blocks).tolist())
        ]

    @property
    def training_fingerprint(self) -> str | None:
        """See `Scorer`."""
        return None if self._training_text is None else self._training_text.fingerprint

    def contamination(self, items: Sequence[ItemScore]) -> Contamination | None:
        """Which blocks' n-grams the training text holds; None where no training text was named."""
        if self._training_text is None:
            return None
        held_out = [
            HeldOut(
                document.text,
                borders := _block_borders(len(document.text.encode()), self._config.block_bytes),
                tuple(_block_id(document.name, index) for index in range(len(borders) - 1)),
            )
            for document in self._documents
        ]
        return contamination(held_out, items, self._training_text, ngram=self._config.ngram)

    def close(self) -> None:
        """Nothing to give back."""


def _checked_choices(item: Item, path: Path) -> tuple[str, ...]:
    seen = {key: item.fields.get(key) for key in ("prompt", "choices", "answer")}
    prompt, choices, answer = seen.values()
    is_right = (
        isinstance(prompt, str)
        and isinstance(choices, list)
        and len(choices) >= 2
        and all(isinstance(choice, str) and choice for choice in choices)
        and isinstance(answer, int)
        and 0 <= answer < len(choices)
    )
    if not is_right:
        raise DataError(
            f"{path}: item '{item.item_id}': expected prompt (text), choices (two texts or more) and answer "
            f"(index from 0), found {json.dumps(seen)[:200]}."
        )
    return tuple(choices)  # type: ignore[arg-type]


def _documents(config: BitsPerByte, folder: Path) -> list[_Document]:
    paths = held_out_files(config, folder)
    if not paths:
        raise DataError(f"benchmark '{config.name}': {', '.join(config.files)} match no file in {folder}.")
    documents = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not UTF-8 text ({error.reason}). Name it in exclude.") from error
        if text:
            documents.append(_Document(path.relative_to(folder).as_posix(), text))
    if not documents:
        raise DataError(f"benchmark '{config.name}': the {len(paths)} files that match are empty.")
    return documents


def _block_borders(num_bytes: int, block_bytes: int) -> npt.NDArray[np.int64]:
    """0, block, 2 block, ..., num_bytes; a remainder of less than half a block goes to the block before it."""
    count = max(1, num_bytes // block_bytes + (num_bytes % block_bytes >= block_bytes / 2))
    return np.array([*(index * block_bytes for index in range(count)), num_bytes], np.int64)


def _block_id(name: str, index: int) -> str:
    return f"{name}#{index:04d}"
