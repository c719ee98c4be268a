"""Previews a recipe: what it will do and need, and notes about unlikely settings.

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
from assay.data.dataset.columns import sequences_of
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import split_view
from assay.data.loader.config import LineLayout, PackedLayout
from assay.data.loader.lane_shares import LaneShares, next_useful_world_size, useful_world_size
from assay.models.config import ModelSize
from assay.reporting.views.check import CalibrationView, CheckView
from assay.reporting.views.dataset_order import order_view
from assay.reporting.views.warnings import warning_text
from assay.trackers.gpus import smallest_gpu_bytes
from assay.training.model_folders import check_models
from assay.training.outer.pilot import outer_warnings
from assay.training.recipe import Recipe
from assay.training.trainer.method_config import samples
from assay.workflows.calibration import Calibration
from assay.workflows.data_warnings import data_warnings
from assay.workflows.run import check_new, count_steps, measure_order

FLOAT_BYTES = 4
HALF_BYTES = 2
"""Bytes of a bfloat16 number."""
MOMENTS = 2
"""Moments of AdamW for each parameter."""
PACKING_WASTE = 11 / 9
"""Upper bound of packed sequences relative to the minimum (see `layouts.pack`)."""
SMALLEST_LINE = 8192
"""Tokens of the shortest line that keeps a GPU busy."""
LARGE_RATE = 0.1
"""A learning rate at which a model forgets its initial weights in one step."""
FORWARD_SHARE = 1 / 3
"""Cost of a forward pass relative to a training step; the backward pass costs two."""


class RankMemory(NamedTuple):
    """Peak memory of a rank in bytes, in float32, without Python and its libraries."""

    parameters: int
    """With the bfloat16 copy of `trainer.weights.compute=bfloat16`."""
    frozen: int
    """Frozen weights: below adapters, or a reference model."""
    gradients: int
    """DDP's buckets, and a partial sum for each doubling of the rank's lanes."""
    optimizer: int
    """Both moments of the optimizer."""
    commit: int
    """Copy of parameters and moments while a commit is written."""
    activations: int
    """Activations of the largest micro-batch."""
    sampling: int
    """Keys, values and logits while sampling, as far as they exceed `activations`, whose memory they reuse."""
    rows: int
    """The current and the next shuffle window."""


class Preview(NamedTuple):
    """Everything about a run that is known before it starts, except its time."""

    num_steps: int
    steps_per_epoch: int
    num_rows: int
    """Training rows in one epoch."""
    num_tokens: float
    """Training tokens in all epochs; for prompts, the prompt tokens."""
    validation_tokens: float
    """Tokens of one evaluation."""
    completions: int
    """Completions of each prompt, which determine the time of a step; 0 if rows are not prompts."""
    completion_tokens: int
    """Tokens of all completions at maximum length; 0 if rows are not prompts."""
    parameters: int | None
    """None if unknown before the model is built."""
    frozen: int
    """Parameters that are held but not trained: weights below adapters, a reference model."""
    memory: RankMemory | None
    """None if the model size is unknown."""
    num_commits: int | None
    """None if commits are scheduled by their measured cost."""
    num_evaluations: int
    """Evaluations on the validation rows, including the last."""
    warnings: tuple[str, ...]
    """Notes on unusual settings."""


def preview(recipe: Recipe, dataset: Dataset, *, world_size: int, changed: Collection[str] = ()) -> Preview:
    """Preview a run. Raises `ConfigError` if it cannot be trained. `changed`: see `check_new`."""
    LaneShares(recipe.loader.lanes, world_size)
    check_models(recipe)
    train, validation = (split_view(dataset, recipe.data.split, part) for part in ("train", "validation"))
    num_rows, mean_tokens = int(train.num_rows.sum()), dataset.manifest.lengths.mean
    steps = count_steps(recipe, dataset)
    notes = check_new(recipe, dataset, changed=changed)
    rows = min(steps.planned * recipe.loader.global_batch_size, recipe.trainer.epochs * num_rows)
    trainer = recipe.trainer
    size, gpu = recipe.method.size(_largest_micro_batch(recipe, dataset)), smallest_gpu_bytes()
    memory = rank_memory(recipe, dataset, world_size, size) if size else None
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
        memory=memory,
        num_commits=_num_due(steps.planned, trainer.commit_every, trainer.evaluate_every)
        if trainer.commit_every != "auto"
        else None,
        num_evaluations=_num_due(steps.planned, trainer.evaluate_every),
        warnings=(
            *notes,
            *_outer_notes(recipe, planned=steps.planned),
            *_notes(recipe, num_rows=num_rows, planned=steps.planned, world_size=world_size),
            *(_line_notes(recipe, dataset) if gpu is not None else ()),
            *(_length_notes(recipe, memory, gpu) if gpu is not None and memory is not None else ()),
        ),
    )


def _outer_notes(recipe: Recipe, *, planned: int) -> list[str]:
    if recipe.outer is None:
        return []
    return outer_warnings(recipe.outer.optimizer, num_outer_steps=-(-planned // recipe.outer.every))


def expected_s(found: Preview, measured: Calibration) -> float:
    """Return the expected wall-clock seconds of the run at the measured speed."""
    commits_s = (found.num_commits or 0) * measured.commit_s
    if found.completions:
        # Held-out prompts get one completion, training prompts several.
        in_steps = found.validation_tokens / max(found.num_tokens / found.num_steps, 1) / found.completions
        steps = found.num_steps + found.num_evaluations * in_steps
        return measured.startup_s + steps * measured.seconds_per_step + commits_s
    tokens = found.num_tokens + FORWARD_SHARE * found.num_evaluations * found.validation_tokens
    return measured.startup_s + tokens * measured.seconds_per_token + commits_s


def check_view(
    found: Preview, recipe: Recipe, dataset: Dataset, measured: Calibration | None, *, world_size: int
) -> CheckView:
    """Return what `assay train --check` shows; `measured` is None if nothing was measured."""
    of_data = [warning_text(warning, with_hint=True) for warning in data_warnings(recipe, dataset)]
    return CheckView.of(
        found,
        warnings=(*of_data, *found.warnings),
        memory_bytes=None if found.memory is None else found.memory._asdict(),
        world_size=world_size,
        wall_s=None if measured is None else expected_s(found, measured),
        measured=None if measured is None else CalibrationView.of(measured),
        order=order_view(measure_order(recipe, dataset)),
        recipe=recipe.model_dump(mode="json"),
    )


def _largest_micro_batch(recipe: Recipe, dataset: Dataset) -> int:
    """Return the tokens of the largest micro-batch, with padding; for packed rows, an estimate."""
    loader, lengths = recipe.loader, dataset.manifest.lengths
    if isinstance(loader.layout, LineLayout):
        return loader.layout.tokens
    sequences, widest = recipe.method.training_sequences(loader.rows_per_lane, int(lengths.max))
    tokens = sequences * widest
    if isinstance(loader.layout, PackedLayout):
        widest = loader.layout.sequence_tokens
        one_by_one = -(-loader.rows_per_lane // max(1, widest // int(lengths.max)))
        filled = math.ceil(PACKING_WASTE * loader.rows_per_lane * lengths.mean / widest)
        tokens = widest * min(one_by_one, filled)
    budget = loader.max_micro_batch_tokens
    return tokens if budget is None else min(tokens, max(widest, budget))


def rank_memory(recipe: Recipe, dataset: Dataset, world_size: int, size: ModelSize) -> RankMemory:
    """Return the memory of a rank that trains a model of this size."""
    shares = LaneShares(recipe.loader.lanes, world_size)
    weights, lanes = FLOAT_BYTES * size.parameters, shares.most
    copied = HALF_BYTES * size.parameters if recipe.trainer.weights.compute == "bfloat16" else 0
    # The gradient being computed, a sum per level of the largest block's tree, and the sums of earlier blocks.
    num_sums = 1 + max(max(1, int(math.log2(load))) + load.bit_count() - 1 for load in shares.loads)
    window_tokens = lanes * recipe.loader.window_rows * dataset.manifest.lengths.mean
    all_tokens = dataset.manifest.num_tokens * lanes / recipe.loader.lanes
    activations = FLOAT_BYTES * size.activations
    sampled = recipe.method.sampling_numbers(lanes * recipe.loader.rows_per_lane, int(dataset.manifest.lengths.max))
    return RankMemory(
        parameters=weights + copied,
        frozen=(HALF_BYTES if copied else FLOAT_BYTES) * size.frozen,
        gradients=num_sums * weights + copied,
        optimizer=MOMENTS * weights,
        commit=(1 + MOMENTS) * weights,
        activations=activations,
        sampling=max(0, FLOAT_BYTES * sampled - activations),
        rows=int(recipe.loader.buffer_bytes_per_token * min(window_tokens, all_tokens)),
    )


def _num_due(num_steps: int, *intervals: int | None) -> int:
    """Return the number of steps that are multiples of one of the intervals, counting the last step."""
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
        yield f"trainer.commit_every={trainer.commit_every:,}: the only commit is at the end: a failure loses all"
    if (fewer := useful_world_size(loader.lanes, world_size)) < world_size:
        more = next_useful_world_size(loader.lanes, world_size)
        yield (
            f"--workers {world_size} is no faster than {fewer}: of loader.lanes={loader.lanes} the busiest has "
            f"{number_of(-(-loader.lanes // world_size), 'lane')} either way. {more} would be faster, as would "
            "more lanes"
        )
    if (threads := world_size * trainer.threads_per_rank) > (cpus := len(os.sched_getaffinity(0))):
        yield f"{threads} threads (--workers x trainer.threads_per_rank) share this machine's {cpus} processors"


def _line_notes(recipe: Recipe, dataset: Dataset) -> Iterator[str]:
    """Advise a line on a GPU. The default layout does not depend on this machine: it would change the weights."""
    loader, longest = recipe.loader, int(dataset.manifest.lengths.max)
    sequences, widest = recipe.method.training_sequences(loader.rows_per_lane, longest)
    row_tokens = widest // len(sequences_of(recipe.method.columns))
    if isinstance(loader.layout, LineLayout):
        if loader.layout.longest_row >= 2 * row_tokens:
            yield (
                f"loader.layout.row_tokens={loader.layout.longest_row}: no row has more than {row_tokens}. Attention "
                f"plans for rows of row_tokens: use loader.layout.row_tokens={row_tokens}"
            )
    elif recipe.method.takes_lines:
        mean = widest * dataset.manifest.lengths.mean / longest
        tokens = max(SMALLEST_LINE, 1 << (max(widest, int(sequences * mean)) - 1).bit_length())
        yield (
            f"loader.layout.type={loader.layout.type}: micro-batches change their shape, so a GPU waits for the host "
            f"to start each kernel. With {{type: line, tokens: {tokens}, row_tokens: {row_tokens}}} a pass "
            "has one shape and starts at once (other batches, hence other weights)"
        )


def _length_notes(recipe: Recipe, memory: RankMemory, gpu: int) -> Iterator[str]:
    """Say before the run that a line is longer than a GPU's memory allows, with the length that fits."""
    layout = recipe.loader.layout
    if not isinstance(layout, LineLayout):
        return
    # Flat gradients are copied to memory of their own.
    rest = memory.parameters + memory.frozen + memory.gradients + memory.optimizer + memory.optimizer // MOMENTS
    # A captured pass keeps its activations, and evaluations run plain passes.
    activations = 2 * memory.activations
    if recipe.trainer.precision != "float32":
        activations = activations * HALF_BYTES // FLOAT_BYTES
    if rest + activations > gpu:
        fitting = max(0, layout.tokens * (gpu - rest) // activations)
        yield (
            f"loader.layout.tokens={layout.tokens}: a worker needs about {bytes_text(rest + activations)}, and a GPU "
            f"here has {bytes_text(gpu)}: lines of about {fitting} tokens fit. Use shorter lines, or "
            "method.model.checkpoint_activations"
        )


def check_gathered_weights_fit(recipe: Recipe, parallel: str, *, world_size: int) -> None:
    """Raise `ConfigError` if sampling with sharded weights needs more memory than there is.

    Sampling gathers all weights on each worker; workers have a GPU each, or share the machine's memory.
    """
    size = recipe.method.size(1)
    if parallel != "fsdp2" or world_size == 1 or size is None or not samples(recipe.method):
        return
    whole = FLOAT_BYTES * (size.parameters + size.frozen)
    shards = FLOAT_BYTES * (2 + MOMENTS) * size.parameters  # weights, gradients and moments
    gpu = smallest_gpu_bytes()
    if gpu is not None:
        needed, available, where = whole + shards // world_size, gpu, "a GPU here"
    else:
        needed, available, where = world_size * whole + shards, machine_bytes(), "this machine"
    if needed > available:
        raise ConfigError(
            f"--parallel fsdp2 --workers {world_size}: to sample completions each worker gathers all weights, "
            f"{bytes_text(whole)} with what is frozen; with their shards that is {bytes_text(needed)}, and "
            f"{where} has {bytes_text(available)}. Use fewer workers on a machine, one with more memory, or a "
            "smaller model."
        )


def machine_bytes() -> int:
    """Return the memory of this machine, or of this process's control group if that is limited further."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    root = Path("/sys/fs/cgroup")
    try:
        own = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return found[0]
    groups = [root / line.removeprefix("0::/") for line in own if line.startswith("0::")]
    limits = [folder / "memory.max" for group in groups for folder in (group, *group.parents)]
    limits = [path for path in limits if path.is_relative_to(root)]
    limits.append(root / "memory" / "memory.limit_in_bytes")  # control groups v1
    limits_text = [path.read_text().strip() for path in limits if path.is_file()]
    found += [int(text) for text in limits_text if text.isdecimal()]
    return min(found)
