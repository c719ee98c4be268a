"""Prompts and completions as arrays, and back.

rows of the dataset   input_ids, item                           a prompt, and what graders read of it
training samples      input_ids = prompt + completion, prompt_tokens, advantage, sampler_logprobs
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from assay.base.errors import DataError
from assay.base.parsing.nesting import parse_json
from assay.base.shapes import Float32, Float64, Int64, Shaped
from assay.data.dataset.columns import ITEM, PROMPT_TOKENS, TOKENS
from assay.data.loader.batch import MicroBatch, Ragged
from assay.data.loader.layouts import pack
from assay.data.loader.line import LineShape, in_slots, scored_arrays
from assay.inference.rollout import Rollout
from assay.scoring.grade import Grade
from assay.training.trainer.method import Tensors

ADVANTAGE, SAMPLER_LOGPROBS = "advantage", "sampler_logprobs"


class RolloutGroup(NamedTuple):
    """A prompt of the dataset, with its rollouts once they are generated, and their advantages once they are graded."""

    row_id: int
    prompt: Int64[np.ndarray, "token"]
    item: Mapping[str, Any]
    """The fields that graders read."""
    rollouts: Sequence[Rollout] = ()
    grades: Sequence[Grade] = ()
    """The reward of each rollout, or why it has none; `parts` are the scores of the rewards by name."""
    shaped_rewards: Float64[np.ndarray, "rollout"] = np.zeros(0)
    """Rewards minus overlong penalties; NaN if a grader failed."""
    advantages: Float32[np.ndarray, "rollout"] = np.zeros(0, np.float32)
    """NaN if a grader failed."""

    @property
    def has_signal(self) -> bool:
        """True if some advantage is not zero."""
        return bool(np.nan_to_num(self.advantages).any())


class TrainingSample(NamedTuple):
    """A rollout with its prompt and advantage: one row of the policy loss."""

    group: RolloutGroup
    rollout: Rollout
    advantage: float

    @property
    def num_tokens(self) -> int:
        return len(self.group.prompt) + len(self.rollout.tokens)


def rewards_of(grades: Sequence[Grade]) -> Float64[np.ndarray, "rollout"]:
    """Return the rewards; NaN for a failed grade."""
    return np.array([np.nan if grade.score is None else grade.score for grade in grades], np.float64)


def prompt_groups(micro_batches: Sequence[MicroBatch]) -> Iterator[RolloutGroup]:
    """Yield the prompts of the micro-batches, without rollouts."""
    for batch in micro_batches:
        lines = zip(batch.tokens.values, batch.tokens.lengths, strict=True)
        for row_id, (tokens, length), item in zip(batch.row_ids.tolist(), lines, items_of(batch), strict=True):
            yield RolloutGroup(row_id, tokens[:length], item)


def items_of(batch: MicroBatch) -> list[dict[str, Any]]:
    """Return the fields that graders read, for each prompt."""
    found = []
    for row, text in zip(batch.row_ids.tolist(), batch.columns[ITEM].to_pylist(), strict=True):
        try:
            item = parse_json(text or "")
        except ValueError:
            item = None
        if not isinstance(item, dict):
            raise DataError(
                f"row {row}: '{ITEM}' is no JSON object: {text!r:.80}. Build the dataset with 'assay data "
                "build --format prompts'."
            )
        found.append(item)
    return found


def prompt_arrays(batch: MicroBatch) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Return the arrays of prompts: `input_ids` [row, token], `lengths`, `row_ids` [row], and the items as
    JSON, `items` [row, byte]."""
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


def groups_from_tensors(tensors: Tensors) -> list[RolloutGroup]:
    """Return the prompts behind the tensors of `prompt_arrays`."""
    arrays = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
    items = [json.loads(line.tobytes().rstrip(b"\0")) for line in arrays["items"]]
    ids, lengths = arrays["row_ids"].view(np.uint64).tolist(), arrays["lengths"].tolist()
    lines = (tokens[:length] for tokens, length in zip(arrays["input_ids"], lengths, strict=True))
    return [RolloutGroup(*row) for row in zip(ids, lines, items, strict=True)]


def micro_batches(
    samples: Sequence[TrainingSample], max_tokens: int | None, line: LineShape | None = None
) -> tuple[MicroBatch, ...]:
    """Group samples of similar length into micro-batches of at most `max_tokens` tokens, padding counted; if it
    is None, into one. With `line`, pack them into lines."""
    if line is not None:
        lengths = np.array([sample.num_tokens for sample in samples], np.int32)
        packed = pack(np.arange(len(samples)), lengths, line.tokens, line.rows)
        return tuple(replace(_micro_batch([samples[row] for row in rows]), line=line) for rows in packed)
    if max_tokens is None:
        return (_micro_batch(samples),) if samples else ()
    by_length, batches, first = sorted(samples, key=lambda sample: sample.num_tokens), [], 0
    for end in range(1, len(by_length) + 1):
        if end == len(by_length) or by_length[end].num_tokens * (end + 1 - first) > max_tokens:
            batches.append(_micro_batch(by_length[first:end]))
            first = end
    return tuple(batches)


def scaled(batch: MicroBatch, divisor: float) -> MicroBatch:
    """Return the micro-batch with its advantages divided."""
    advantages = (np.asarray(batch.columns[ADVANTAGE], np.float64) / divisor).astype(np.float32)
    return replace(batch, columns={**batch.columns, ADVANTAGE: pa.array(advantages, pa.float32())})


def has_completions(batch: MicroBatch) -> bool:
    """Return whether the micro-batch holds completions, not prompts."""
    return ADVANTAGE in batch.columns


def num_completion_tokens(batch: MicroBatch) -> int:
    """Return the number of completion tokens."""
    return int(batch.tokens.lengths.sum() - batch.columns[PROMPT_TOKENS].to_numpy().sum())


def completion_arrays(batch: MicroBatch) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Return `input_ids` [row, token]; `loss_mask` (true for completion tokens) and `sampler_logprobs` [row,
    target]; `advantages` [row].

    A line has the arrays of `scored_arrays`, of which `loss_mask` and `num_completion_tokens`, at least 1, are
    `scored` and `num_scored`.
    """
    positions = np.arange(1, batch.tokens.values.shape[1])
    prompts = batch.columns[PROMPT_TOKENS].to_numpy()
    loss_mask = (positions >= prompts[:, None]) & (positions < batch.tokens.lengths[:, None])
    arrays = {"input_ids": batch.tokens.values, "loss_mask": loss_mask}
    advantages = np.array(batch.columns[ADVANTAGE], np.float32)
    if (line := batch.line) is not None:
        slots = np.arange(len(advantages))
        arrays = scored_arrays(batch.tokens.values, batch.tokens.lengths, loss_mask, line, slots=slots)
        arrays["loss_mask"] = arrays.pop("scored")
        arrays["num_completion_tokens"] = np.maximum(1, arrays.pop("num_scored"))
        advantages = in_slots(advantages, slots, line.num_slots)
    sampler_logprobs = np.zeros(arrays["loss_mask"].shape, np.float32)
    sampler_logprobs[arrays["loss_mask"]] = batch.columns[SAMPLER_LOGPROBS].flatten().to_numpy(zero_copy_only=False)
    return {**arrays, "sampler_logprobs": sampler_logprobs, "advantages": advantages}


def _micro_batch(samples: Sequence[TrainingSample]) -> MicroBatch:
    lengths = np.array([sample.num_tokens for sample in samples], np.int32)
    lines = np.zeros((len(samples), int(lengths.max())), np.int64)
    for line, sample, length in zip(lines, samples, lengths, strict=True):
        line[:length] = np.concatenate([sample.group.prompt, sample.rollout.tokens])
    return MicroBatch(
        row_ids=np.array([sample.group.row_id for sample in samples], np.uint64),
        ragged={TOKENS: Ragged(lines, lengths)},
        columns={
            PROMPT_TOKENS: pa.array([len(sample.group.prompt) for sample in samples], pa.int32()),
            ADVANTAGE: pa.array([sample.advantage for sample in samples], pa.float32()),
            SAMPLER_LOGPROBS: pa.array([sample.rollout.logprobs for sample in samples], pa.list_(pa.float32())),
        },
    )
