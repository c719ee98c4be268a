"""Benchmarks scored by likelihood: multiple choice, and bits per byte of held-out text."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from assay.base.digest import canonical_json
from assay.evals.config import BitsPerByte, MultipleChoice
from assay.evals.contamination import HeldOut, TrainingText, contamination, prompts
from assay.evals.items import checked_choices, read_documents, read_items
from assay.evals.scorer import Identity, Scorer, chunk_ranges
from assay.evals.version import bits_per_byte_version, multiple_choice_version
from assay.inference.protocol import Engine
from assay.records.benchmark import Contamination
from assay.statistics.benchmark_items import ItemScore


class MultipleChoiceScorer(Scorer):
    """Scores 1 if the right choice has the highest likelihood, else 0; of equal choices, the first counts."""

    def __init__(
        self, config: MultipleChoice, folder: Path, model: Engine, training_text: TrainingText | None = None
    ) -> None:
        self._path = folder / config.items
        self._items = read_items(self._path)
        self._choices = [checked_choices(item, self._path) for item in self._items]
        self._normalise = config.normalise
        self._model = model
        self._chunks = chunk_ranges(len(self._items), config.chunk_items)
        self.num_chunks = len(self._chunks)
        self._training_text = training_text
        self.training_fingerprint = training_text.fingerprint if training_text else None
        version = multiple_choice_version(config, self._items, self._path)
        self.identity = Identity(benchmark=config.name, **version, higher_is_better=True)

    def score_chunk(self, chunk: int) -> list[ItemScore]:
        return [self._score(index) for index in self._chunks[chunk]]

    def contamination(self, items: Sequence[ItemScore]) -> Contamination | None:
        """Return the items whose prompt and choices occur in the training text."""
        texts = {
            item.item_id: [str(item.fields["prompt"]), *choices]
            for item, choices in zip(self._items, self._choices, strict=True)
        }
        return contamination(prompts(texts), items, self._training_text)

    def _score(self, index: int) -> ItemScore:
        item, choices = self._items[index], self._choices[index]
        bits = [self._bits(str(item.fields["prompt"]), choice) for choice in choices]
        chosen = int(np.argmin(bits))
        return ItemScore(
            item.item_id,
            item.cluster,
            float(chosen == item.fields["answer"]),
            completion=choices[chosen],
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


class BitsPerByteScorer(Scorer):
    """Scores blocks of held-out files; a file is a chunk, its blocks are items."""

    def __init__(self, config: BitsPerByte, folder: Path, model: Engine, training_text: TrainingText | None) -> None:
        self._documents = read_documents(config, folder)
        self._config = config
        self._model = model
        self._training_text = training_text
        self.num_chunks = len(self._documents)
        self.training_fingerprint = training_text.fingerprint if training_text else None
        self.identity = Identity(
            benchmark=config.name,
            **bits_per_byte_version(config, self._documents),
            unit="bits per byte",
            higher_is_better=False,
        )

    def score_chunk(self, chunk: int) -> list[ItemScore]:
        document = self._documents[chunk]
        found = self._model.text_bits(document.text, window_tokens=self._config.window_tokens)
        blocks = _block_boundaries(found.num_bytes, self._config.block_bytes)
        which = np.searchsorted(blocks, found.starts, side="right") - 1
        bits = np.bincount(which, weights=found.bits, minlength=len(blocks) - 1)
        return [
            ItemScore(_block_id(document.name, index), document.name, float(bits[index] / size), weight=float(size))
            for index, size in enumerate(np.diff(blocks).tolist())
        ]

    def contamination(self, items: Sequence[ItemScore]) -> Contamination | None:
        """Return the blocks whose n-grams occur in the training text; None if no training text is given."""
        held_out = [
            HeldOut(
                document.text,
                boundaries := _block_boundaries(len(document.text.encode()), self._config.block_bytes),
                tuple(_block_id(document.name, index) for index in range(len(boundaries) - 1)),
            )
            for document in self._documents
        ]
        return contamination(held_out, items, self._training_text, ngram=self._config.ngram)


def _block_boundaries(num_bytes: int, block_bytes: int) -> npt.NDArray[np.int64]:
    """Return 0, block, 2 block, ..., num_bytes; a remainder below half a block joins the block before it."""
    count = max(1, num_bytes // block_bytes + (num_bytes % block_bytes >= block_bytes / 2))
    return np.array([*(index * block_bytes for index in range(count)), num_bytes], np.int64)


def _block_id(name: str, index: int) -> str:
    return f"{name}#{index:04d}"
