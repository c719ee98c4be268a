"""What a recipe will do, told before it does it; and what in it cannot be meant.

recipe + dataset's manifest ------> steps, tokens, commits, evaluations
       + shape of the model ------> memory of a rank, by a formula
       + some real steps here ----> time and device-hours (`calibration`)
"""

import math
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from assay.base.errors import ConfigError
from assay.base.units import bytes_text, number_of
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import split_view
from assay.data.loader.config import PackedLayout
from assay.data.loader.lane_shares import LaneShares, next_useful_world_size, useful_world_size
from assay.trackers.gpus import smallest_gpu_bytes
from assay.training.model_folders import check_models
from assay.training.recipe import Recipe
from assay.training.trainer.method_config import samples
from assay.workflows.calibration import Calibration
from assay.workflows.run import check_new, count_steps

FLOAT_BYTES = 4
MOMENTS = 2
"""AdamW's, for each parameter."""
PACKING_WASTE = 11 / 9
"""Sequences for each that is needed at least, at the most (see `layouts.pack`)."""
LARGE_RATE = 0.1
"""A learning rate at which a model forgets what it begins with in a step."""
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
    sampling: int
    """Where prompts are answered: keys, values and logits, so far as they are more than `activations`, whose
    memory they use."""
    rows: int
    """The window that is read from and the next."""


class Preview(NamedTuple):
    """What is known beforehand of a whole run, but its time."""

    num_steps: int
    steps_per_epoch: int
    num_rows: int
    """Rows of training, in one epoch."""
    num_tokens: float
    """Learned in all; where rows are prompts, theirs."""
    validation_tokens: float
    """In one evaluation."""
    completions: int
    """To each row, where rows are prompts: steps then take as long as what is drawn. Else 0."""
    completion_tokens: int
    """In all answers, if each is as long as it may be. Else 0."""
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
    warnings: tuple[str, ...]
    """What is odd, and may be meant."""


def preview(recipe: Recipe, dataset: Dataset, *, world_size: int, changed: Collection[str] = ()) -> Preview:
    """Raises `ConfigError` for what cannot be trained so. `changed`: see `check_new`."""
    LaneShares(recipe.loader.lanes, world_size)
    check_models(recipe)
    train, validation = (split_view(dataset, recipe.data.split, part) for part in ("train", "validation"))
    num_rows, mean_tokens = int(train.num_rows.sum()), dataset.manifest.lengths.mean
    steps = count_steps(recipe, dataset)
    notes = check_new(recipe, steps.planned, changed=changed)
    rows = min(steps.planned * recipe.loader.global_batch_size, recipe.trainer.epochs * num_rows)
    trainer = recipe.trainer
    size = recipe.method.size(_largest_micro_batch(recipe, dataset))
    completions, longest = recipe.method.training_sequences(1, 0) if samples(recipe.method) else (0, 0)
    return Preview(
        num_steps=steps.planned,
        steps_per_epoch=steps.per_epoch,
        num_rows=num_rows,
        num_tokens=rows * mean_tokens,
        validation_tokens=int(validation.num_rows.sum()) * mean_tokens,
        completions=completions,
        completion_tokens=rows * completions * longest,
        parameters=size.parameters if size else recipe.method.num_parameters(),
        frozen=size.frozen if size else 0,
        memory=_memory(recipe, dataset, world_size) if size else None,
        num_commits=_num_due(steps.planned, trainer.commit_every, trainer.evaluate_every)
        if trainer.commit_every != "auto"
        else None,
        num_evaluations=_num_due(steps.planned, trainer.evaluate_every),
        warnings=(
            *notes,
            *_notes(recipe, num_rows=num_rows, planned=steps.planned, world_size=world_size),
        ),
    )


def expected_s(found: Preview, measured: Calibration) -> float:
    """Wall-clock seconds of the run, at the speed that was measured."""
    commits_s = (found.num_commits or 0) * measured.commit_s
    if found.completions:
        # Held-out prompts are answered once, those of a step several times.
        in_steps = found.validation_tokens / max(found.num_tokens / found.num_steps, 1) / found.completions
        steps = found.num_steps + found.num_evaluations * in_steps
        return measured.startup_s + steps * measured.seconds_per_step + commits_s
    tokens = found.num_tokens + FORWARD_SHARE * found.num_evaluations * found.validation_tokens
    return measured.startup_s + tokens * measured.seconds_per_token + commits_s


def _largest_micro_batch(recipe: Recipe, dataset: Dataset) -> int:
    """Tokens, padding counted; where rows are packed, about as many."""
    loader, lengths = recipe.loader, dataset.manifest.lengths
    sequences, widest = recipe.method.training_sequences(loader.rows_per_lane, int(lengths.max))
    tokens = sequences * widest
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
    shares = LaneShares(recipe.loader.lanes, world_size)
    weights, lanes = FLOAT_BYTES * size.parameters, shares.most
    # What is in the making, one sum a level of the largest block's tree, and the sums of the earlier blocks.
    num_sums = 1 + max(max(1, int(math.log2(load))) + load.bit_count() - 1 for load in shares.loads)
    window_tokens = lanes * recipe.loader.window_rows * dataset.manifest.lengths.mean
    all_tokens = dataset.manifest.num_tokens * lanes / recipe.loader.lanes
    activations = FLOAT_BYTES * size.activations
    sampled = recipe.method.sampling_numbers(lanes * recipe.loader.rows_per_lane, int(dataset.manifest.lengths.max))
    return RankMemory(
        parameters=weights,
        frozen=FLOAT_BYTES * size.frozen,
        gradients=num_sums * weights,
        optimizer=MOMENTS * weights,
        commit=(1 + MOMENTS) * weights,
        activations=activations,
        sampling=max(0, FLOAT_BYTES * sampled - activations),
        rows=int(recipe.loader.buffer_bytes_per_token * min(window_tokens, all_tokens)),
    )


def _num_due(num_steps: int, *intervals: int | None) -> int:
    """Steps that are multiples of one of those numbers, and the last."""
    first, second = (*(interval for interval in intervals if interval), 0, 0)[:2]
    count = sum(num_steps // interval for interval in (first, second) if interval)
    if first and second:
        count -= num_steps // math.lcm(first, second)
    is_last_due = any(num_steps % interval == 0 for interval in (first, second) if interval)
    return count + (not is_last_due)


def _notes(recipe: Recipe, *, num_rows: int, planned: int, world_size: int) -> Iterator[str]:
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
    if (rate := trainer.optimizer.learning_rate) >= LARGE_RATE:
        yield (
            f"trainer.optimizer.learning_rate={rate:g}: AdamW moves a weight by about as much in a step, and "
            "weights begin about 0.02 wide. 1e-5 (pretrained) to 1e-2 (small, new) are usual"
        )
    evaluates_before = trainer.evaluate_every is not None and trainer.evaluate_every < planned
    if trainer.commit_every != "auto" and trainer.commit_every > planned and not evaluates_before:
        yield f"trainer.commit_every={trainer.commit_every:,}: the only commit is at the end, a death costs all"
    if (fewer := useful_world_size(loader.lanes, world_size)) < world_size:
        more = next_useful_world_size(loader.lanes, world_size)
        yield (
            f"--workers {world_size} is no faster than {fewer}: of loader.lanes={loader.lanes} the busiest has "
            f"{number_of(-(-loader.lanes // world_size), 'lane')} either way. {more} would be faster, as would "
            "more lanes"
        )
    if (threads := world_size * trainer.threads_per_rank) > (cpus := len(os.sched_getaffinity(0))):
        yield f"{threads} threads (--workers x trainer.threads_per_rank) share this machine's {cpus} processors"


def check_gathered_weights_fit(recipe: Recipe, parallel: str, *, world_size: int) -> None:
    """Refuse to answer prompts with sharded weights that do not fit whole where a worker computes.

    On this machine's GPUs each worker has one; else all share its memory.
    """
    size = recipe.method.size(1)
    if parallel != "fsdp2" or world_size == 1 or size is None or not samples(recipe.method):
        return
    whole = FLOAT_BYTES * (size.parameters + size.frozen)
    shards = FLOAT_BYTES * (2 + MOMENTS) * size.parameters  # weights and gradients, beside the moments
    gpu = smallest_gpu_bytes()
    if gpu is not None:
        needed, available, where = whole + shards // world_size, gpu, "a GPU here"
    else:
        needed, available, where = world_size * whole + shards, machine_bytes(), "this machine"
    if needed > available:
        raise ConfigError(
            f"--parallel fsdp2 --workers {world_size}: to answer prompts each worker gathers all weights, "
            f"{bytes_text(whole)} with what is frozen; with their shards that is {bytes_text(needed)}, and "
            f"{where} has {bytes_text(available)}. Use fewer workers on a machine, one with more memory, or a "
            "smaller model."
        )


def machine_bytes() -> int:
    """Memory of this machine, or of the control group that this process is in where that may have less."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    root = Path("/sys/fs/cgroup")
    try:
        own = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return found[0]
    groups = [root / line.removeprefix("0::/") for line in own if line.startswith("0::")]
    limits = [folder / "memory.max" for group in groups for folder in (group, *group.parents)]
    limits = [path for path in limits if path.is_relative_to(root)]
    limits.append(root / "memory" / "memory.limit_in_bytes")  # of the first version
    limits_text = [path.read_text().strip() for path in limits if path.is_file()]
    found += [int(text) for text in limits_text if text.isdecimal()]
    return min(found)
