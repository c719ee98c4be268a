"""Traces the passes of a recipe: its model, its loss, and micro-batches that its loader reads.

micro-batches of the first steps of a lane --by their number of tokens--> the median and the largest
a new model --with one layer and with two--> its operators at any depth
"""

from dataclasses import replace
from typing import Any, NamedTuple

from assay.base.config import LoadedConfig, set_dotted, validated
from assay.base.errors import ConfigError
from assay.data.dataset.columns import sequences_of
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import split_view
from assay.data.loader.batch import MicroBatch
from assay.data.loader.loader import Loader
from assay.models.traced import PassTrace, at_depth
from assay.throughput.shape_changes import new_model
from assay.training.methods.registry import method_of
from assay.training.pass_trace import LossPass, trace_pass
from assay.training.recipe import Recipe
from assay.training.trainer.config import Precision
from assay.training.trainer.method_config import samples

SAMPLED_STEPS = 8
MAX_TRACED_LAYERS = 2


class SampledRows(NamedTuple):
    """Micro-batches of a recipe."""

    median: MicroBatch
    """With a median number of tokens."""
    largest: MicroBatch
    passes: float
    """Mean passes of a lane in a step."""


def sampled_rows(recipe: Recipe, dataset: Dataset) -> SampledRows:
    """Read the micro-batches of a lane's first steps. Raises `ConfigError` for a method whose rows are prompts."""
    if samples(recipe.method):
        raise ConfigError(
            f"method.type={recipe.method.type}: it trains on completions that it samples, so the shapes of its passes "
            "are not known before a run. Describe a recipe with rows, e.g. sft with the same method.model."
        )
    loader = Loader(split_view(dataset, recipe.data.split, "train"), recipe.loader, tuple(recipe.method.columns))
    num_steps = min(SAMPLED_STEPS, max(1, loader.steps_per_epoch - 1))  # the last step of an epoch is smaller
    shares = loader.shares(loader.cursor_at(0), [0], num_steps)
    found = [batch for share in shares for batch in share.lanes[0].micro_batches]
    found.sort(key=_padded_tokens)
    return SampledRows(found[len(found) // 2], found[-1], len(found) / num_steps)


def _padded_tokens(batch: MicroBatch) -> int:
    return len(batch.row_ids) * sum(int(batch.ragged[name].lengths.max()) for name in sequences_of(batch.ragged))


def resized(batch: MicroBatch, factor: float) -> MicroBatch:
    """Return a micro-batch with so many times the rows, which are repeated or left out; also of a line's length."""
    count = max(1, round(len(batch.row_ids) * factor))
    if batch.line is None:
        return batch.take([row % len(batch.row_ids) for row in range(count)])
    line = batch.line._replace(tokens=round(batch.line.tokens * factor), rows=max(1, round(batch.line.rows * factor)))
    rows, used = list[int](), 0
    for row in (index % len(batch.row_ids) for index in range(count)):
        used += sum(int(batch.ragged[name].lengths[row]) for name in sequences_of(batch.ragged))
        if used > line.tokens:
            break
        rows.append(row)
    return replace(batch.take(rows), line=line)


def pass_of(recipe: Recipe, batch: MicroBatch, *, on_gpu: bool) -> LossPass:
    """Return the pass of a recipe's model over a micro-batch, with the precision that the device has by default."""
    trainer = recipe.trainer
    precision: Precision = ("bfloat16" if on_gpu else "float32") if trainer.precision == "auto" else trainer.precision
    return LossPass(method_of(recipe.method), batch, precision, trainer.weights.compute == "bfloat16")


def trace_recipe(recipe: Recipe, batch: MicroBatch, *, on_gpu: bool) -> PassTrace:
    """Trace a pass of the recipe's model over a micro-batch."""

    def traced(recipe: Recipe) -> PassTrace:
        return trace_pass(pass_of(recipe, batch, on_gpu=on_gpu), on_gpu=on_gpu)

    found = new_model(recipe)
    if found is None or found[1].num_layers <= MAX_TRACED_LAYERS:
        return traced(recipe)
    key, model = found
    one, two = (traced(changed(recipe, {f"{key}.num_layers": depth})) for depth in (1, MAX_TRACED_LAYERS))
    return at_depth(one, two, model.num_layers)


def changed(recipe: Recipe, patch: dict[str, Any]) -> Recipe:
    """Return the recipe with other values of some keys. Raises `ConfigError` if they do not fit."""
    values = recipe.model_dump(mode="json")
    for key, value in patch.items():
        set_dotted(values, key, value, where="in the recipe")
    return validated(Recipe, LoadedConfig(values, {}))
