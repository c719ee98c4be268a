"""Prompts and answers as arrays, and back.

rows of the dataset   input_ids, item                           a prompt, and what graders read of it
answers               input_ids = prompt + answer, prompt_tokens, advantage, sampler_logprobs
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from torch import Tensor

from assay.base.shapes import Int64, Shaped
from assay.data.dataset.columns import ITEM, PROMPT_TOKENS, TOKENS
from assay.data.loader.batch import MicroBatch, Ragged
from assay.inference.rollout import Rollout
from assay.training.methods.grpo.rewards import items_of

ADVANTAGE, SAMPLER_LOGPROBS = "advantage", "sampler_logprobs"


class PromptRow(NamedTuple):
    """A row of the dataset."""

    row_id: int
    tokens: Int64[np.ndarray, "token"]
    item: Mapping[str, Any]
    """What graders read."""


class TaughtAnswer(NamedTuple):
    """One that teaches."""

    row: PromptRow
    rollout: Rollout
    advantage: float

    @property
    def num_tokens(self) -> int:
        """With its prompt."""
        return len(self.row.tokens) + len(self.rollout.tokens)


def rows_of(micro_batches: Sequence[MicroBatch]) -> Iterator[PromptRow]:
    """In their order."""
    for batch in micro_batches:
        lines = zip(batch.tokens.values, batch.tokens.lengths, strict=True)
        for row_id, (tokens, length), item in zip(batch.row_ids.tolist(), lines, items_of(batch), strict=True):
            yield PromptRow(row_id, tokens[:length], item)


def prompt_arrays(batch: MicroBatch) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Arrays of prompts that are to be answered: `input_ids` [row, token], `lengths`, `row_ids` [row], and the
    items as JSON, `items` [row, byte]."""
    texts = [text.encode() for text in batch.columns[ITEM].to_pylist()]
    items = np.zeros((len(texts), max(map(len, texts))), np.uint8)
    for line, text in zip(items, texts, strict=True):
        line[: len(text)] = np.frombuffer(text, np.uint8)
    return {
        "input_ids": batch.tokens.values,
        "lengths": batch.tokens.lengths,
        "row_ids": batch.row_ids.view(np.int64),
        "items": items,
    }


def rows_behind(tensors: Mapping[str, Shaped[Tensor, "..."]]) -> list[PromptRow]:
    """What `prompt_arrays` was made of."""
    arrays = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
    items = [json.loads(line.tobytes().rstrip(b"\0")) for line in arrays["items"]]
    ids, lengths = arrays["row_ids"].view(np.uint64).tolist(), arrays["lengths"].tolist()
    lines = (tokens[:length] for tokens, length in zip(arrays["input_ids"], lengths, strict=True))
    return [PromptRow(*row) for row in zip(ids, lines, items, strict=True)]


def micro_batches(answers: Sequence[TaughtAnswer], max_tokens: int | None) -> tuple[MicroBatch, ...]:
    """Answers of like length together, as many as a budget of tokens takes, padding counted; without one,
    all."""
    if max_tokens is None:
        return (_micro_batch(answers),) if answers else ()
    by_length, made, first = sorted(answers, key=lambda answer: answer.num_tokens), [], 0
    for end in range(1, len(by_length) + 1):
        if end == len(by_length) or by_length[end].num_tokens * (end + 1 - first) > max_tokens:
            made.append(_micro_batch(by_length[first:end]))
            first = end
    return tuple(made)


def scaled(batch: MicroBatch, divisor: float) -> MicroBatch:
    """With advantages divided."""
    advantages = (np.asarray(batch.columns[ADVANTAGE], np.float64) / divisor).astype(np.float32)
    return replace(batch, columns={**batch.columns, ADVANTAGE: pa.array(advantages, pa.float32())})


def is_of_answers(batch: MicroBatch) -> bool:
    """And not of prompts."""
    return ADVANTAGE in batch.columns


def num_answer_tokens(batch: MicroBatch) -> int:
    """Without the prompts'."""
    return int(batch.tokens.lengths.sum() - batch.columns[PROMPT_TOKENS].to_numpy().sum())


def answer_arrays(batch: MicroBatch) -> dict[str, Shaped[np.ndarray, "..."]]:
    """`input_ids` [row, token]; `learned` (a token of the answer), `sampler_logprobs` [row, target];
    `advantages` [row]."""
    places = np.arange(1, batch.tokens.values.shape[1])
    prompts = batch.columns[PROMPT_TOKENS].to_numpy()
    learned = (places >= prompts[:, None]) & (places < batch.tokens.lengths[:, None])
    said = np.zeros(learned.shape, np.float32)
    said[learned] = batch.columns[SAMPLER_LOGPROBS].flatten().to_numpy(zero_copy_only=False)
    return {
        "input_ids": batch.tokens.values,
        "learned": learned,
        "sampler_logprobs": said,
        "advantages": np.array(batch.columns[ADVANTAGE], np.float32),
    }


def _micro_batch(answers: Sequence[TaughtAnswer]) -> MicroBatch:
    lengths = np.array([answer.num_tokens for answer in answers], np.int32)
    lines = np.zeros((len(answers), int(lengths.max())), np.int64)
    for line, answer, length in zip(lines, answers, lengths, strict=True):
        line[:length] = np.concatenate([answer.row.tokens, answer.rollout.tokens])
    return MicroBatch(
        row_ids=np.array([answer.row.row_id for answer in answers], np.uint64),
        ragged={TOKENS: Ragged(lines, lengths)},
        columns={
            PROMPT_TOKENS: pa.array([len(answer.row.tokens) for answer in answers], pa.int32()),
            ADVANTAGE: pa.array([answer.advantage for answer in answers], pa.float32()),
            SAMPLER_LOGPROBS: pa.array([answer.rollout.logprobs for answer in answers], pa.list_(pa.float32())),
        },
    )
