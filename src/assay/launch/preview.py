"""What a recipe will do, told before it does it; and what in it cannot be meant.

recipe + dataset's manifest ------> steps, tokens, commits, evaluations
       + shape of the model ------> memory of a rank, by a formula
       + some real steps here ----> time and device-hours (`calibration`)
"""

import math
import os
from collections.abc import Iterator
from typing import NamedTuple

from assay.base.units import number_of
from assay.data.dataset.columns import sequences_of
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import split_view
from assay.data.loader.config import PackedLayout
from assay.data.loader.lane_shares import LaneShares
from assay.launch.calibration import Calibration
from assay.launch.run import check_length, steps_of
from assay.training.recipe import Recipe

FLOAT_BYTES = 4
MOMENTS = 2
"""AdamW's, for each parameter."""
PACKING_WASTE = 11 / 9
"""Sequences for each that is needed at least, at the most (see `layouts.pack`)."""
FORWARD_SHARE = 1 / 3
"""The share of a training step, that a forward pass alone takes: backward is two of them."""


class RankMemory(NamedTuple):
    """Bytes that a rank holds at its most, in float32, beside what Python and its libraries take."""

    parameters: int
    frozen: int
    """Weights that are not trained: those below adapters, a reference."""
    gradients: int
    """One set in DDP's buckets, and a partial sum for each doubling of the rank's lanes."""
    optimizer: int
    """Both moments."""
    commit: int
    """Parameters and moments again, while they are written."""
    activations: int
    """Bytes of the largest micro-batch."""
    rows: int
    """The window that is read from and the next."""


class Preview(NamedTuple):
    """What is known beforehand of a whole run, but its time."""

    num_steps: int
    steps_per_epoch: int
    num_rows: int
    """Rows of training, in one epoch."""
    num_tokens: float
    """Learned in all."""
    validation_tokens: float
    """In one evaluation."""
    parameters: int | None
    """None where nobody knows before the model is made."""
    frozen: int
    """Numbers that are held and not trained: weights below adapters, a reference."""
    memory: RankMemory | None
    """Likewise."""
    num_commits: int | None
    """None where the measured cost of one decides."""
    num_evaluations: int
    """On the validation rows, the last one counted."""
    remarks: tuple[str, ...]
    """What is odd, and may be meant."""


def preview(recipe: Recipe, dataset: Dataset, *, world_size: int) -> Preview:
    """Raises `ConfigError` for what cannot be trained so."""
    LaneShares(recipe.loader.lanes, world_size)
    train, validation = (split_view(dataset, recipe.data.split, part) for part in ("train", "validation"))
    num_rows, mean_tokens = int(train.num_rows.sum()), dataset.manifest.lengths.mean
    steps = steps_of(recipe, dataset)
    check_length(recipe, steps.planned)
    learned = min(steps.planned * recipe.loader.global_batch_size, recipe.trainer.epochs * num_rows)
    trainer = recipe.trainer
    size = recipe.method.size(_largest_micro_batch(recipe, dataset))
    return Preview(
        num_steps=steps.planned,
        steps_per_epoch=steps.per_epoch,
        num_rows=num_rows,
        num_tokens=learned * mean_tokens,
        validation_tokens=int(validation.num_rows.sum()) * mean_tokens,
        parameters=size.parameters if size else recipe.method.num_parameters(),
        frozen=size.frozen if size else 0,
        memory=_memory(recipe, dataset, world_size) if size else None,
        num_commits=_num_due(steps.planned, trainer.commit_every, trainer.evaluate_every)
        if trainer.commit_every != "auto"
        else None,
        num_evaluations=_num_due(steps.planned, trainer.evaluate_every),
        remarks=tuple(_remarks(recipe, num_rows=num_rows, planned=steps.planned, world_size=world_size)),
    )


def expected_s(found: Preview, measured: Calibration) -> float:
    """Wall-clock seconds of the run, at the speed that was measured."""
    tokens = found.num_tokens + FORWARD_SHARE * found.num_evaluations * found.validation_tokens
    commits_s = (found.num_commits or 0) * measured.commit_s
    return measured.startup_s + tokens * measured.seconds_per_token + commits_s


def _largest_micro_batch(recipe: Recipe, dataset: Dataset) -> int:
    """Tokens, padding counted; where rows are packed, about as many."""
    loader, lengths = recipe.loader, dataset.manifest.lengths
    # Both sequences of a pair are as wide as the longer one.
    widest = int(lengths.max) * len(sequences_of(recipe.method.columns))
    tokens = loader.rows_per_lane * widest
    if isinstance(loader.layout, PackedLayout):
        widest = loader.layout.sequence_tokens
        one_by_one = -(-loader.rows_per_lane // max(1, widest // int(lengths.max)))
        filled = math.ceil(PACKING_WASTE * loader.rows_per_lane * lengths.mean / widest)
        tokens = widest * min(one_by_one, filled)
    budget = loader.max_micro_batch_tokens
    return tokens if budget is None else min(tokens, max(widest, budget))


def _memory(recipe: Recipe, dataset: Dataset, world_size: int) -> RankMemory:
    size = recipe.method.size(_largest_micro_batch(recipe, dataset))
    assert size is not None
    weights, lanes = FLOAT_BYTES * size.parameters, recipe.loader.lanes // world_size
    num_sums = 1 + max(1, int(math.log2(lanes)))
    window_tokens = lanes * recipe.loader.window_rows * dataset.manifest.lengths.mean
    all_tokens = dataset.manifest.num_tokens / world_size
    return RankMemory(
        parameters=weights,
        frozen=FLOAT_BYTES * size.frozen,
        gradients=num_sums * weights,
        optimizer=MOMENTS * weights,
        commit=(1 + MOMENTS) * weights,
        activations=FLOAT_BYTES * size.activations,
        rows=int(2 * FLOAT_BYTES * min(window_tokens, all_tokens)),
    )


def _num_due(num_steps: int, *every: int | None) -> int:
    """Steps that are multiples of one of those numbers, and the last."""
    first, second = (*(each for each in every if each), 0, 0)[:2]
    count = sum(num_steps // each for each in (first, second) if each)
    if first and second:
        count -= num_steps // math.lcm(first, second)
    is_last_due = any(num_steps % each == 0 for each in (first, second) if each)
    return count + (not is_last_due)


def _remarks(recipe: Recipe, *, num_rows: int, planned: int, world_size: int) -> Iterator[str]:
    trainer, loader = recipe.trainer, recipe.loader
    if trainer.max_steps is not None and trainer.max_steps > planned:
        yield (
            f"trainer.max_steps={trainer.max_steps:,} is never reached: trainer.epochs={trainer.epochs} has "
            f"{planned:,} steps. More steps need more epochs"
        )
    if loader.global_batch_size > num_rows:
        yield (
            f"loader.global_batch_size={loader.global_batch_size:,} is more than the "
            f"{number_of(num_rows, 'row')} of training: a step is an epoch"
        )
    if trainer.commit_every != "auto" and trainer.commit_every > planned:
        yield f"trainer.commit_every={trainer.commit_every:,}: the only commit is at the end, a death costs all"
    if (threads := world_size * trainer.threads_per_rank) > (cpus := len(os.sched_getaffinity(0))):
        yield f"{threads} threads (--workers x trainer.threads_per_rank) share this machine's {cpus} processors"
