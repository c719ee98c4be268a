"""Changes of a recipe that may waste less of a device: the next sizes that fill its tiles, waves and rows.

Only keys of the recipe are changed, so a change is a candidate of a campaign or a ladder. Depth is not among them: all
layers have the same shapes. A pretrained model keeps its sizes.
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from assay.data.loader.config import LineLayout, LoaderConfig, PackedLayout
from assay.models.causal_config import NewCausalConfig
from assay.models.config import NewEncoderConfig
from assay.throughput.device_time import VOCABULARY_MULTIPLE
from assay.training.recipe import Recipe

Aspect = Literal["vocabulary", "width", "feed-forward", "heads", "micro-batch", "lanes"]
Changed = Literal["rounding", "training", "model"]
"""What another value changes: only the rounding of results; also which rows share a step; or the model itself."""
ADDS_WORK: tuple[Aspect, ...] = ("width", "feed-forward")
"""Aspects whose changes make the model compute more or less, so that time for equal arithmetic is compared."""

NewModel = NewCausalConfig | NewEncoderConfig
WIDTH_MULTIPLE = 128
HEAD_WIDTHS = (64, 128)
"""Widths of a head at which fused attention is fastest."""
ROW_STEPS = (1, 2, 3, 4, 8)
LINE_STEPS = (512, 1024, 2048, 4096)


class ShapeChange(NamedTuple):
    """One possible change."""

    aspect: Aspect
    patch: dict[str, Any]
    """Dotted key of the recipe -> value."""
    changes: Changed
    consequence: str
    """What else it changes, as a sentence."""
    rows: float = 1.0
    """Rows of a micro-batch, divided by today's."""


def shape_changes(recipe: Recipe, *, world_size: int, rows: int) -> Iterator[ShapeChange]:
    """Yield the changes that are worth an estimate; `rows` are those of a micro-batch."""
    if (found := new_model(recipe)) is not None:
        yield from _model_changes(*found)
    yield from _loader_changes(recipe.loader, world_size=world_size, rows=rows)


def new_model(recipe: Recipe) -> tuple[str, NewModel] | None:
    """Return the key and the configuration of a recipe's model if it is new; None if it is pretrained."""
    for name in ("model", "encoder"):
        if isinstance(model := getattr(recipe.method, name, None), NewModel):
            return f"method.{name}", model
    return None


def _model_changes(key: str, model: NewModel) -> Iterator[ShapeChange]:
    vocabulary, width, heads = model.vocab_size, model.hidden_size, model.num_heads
    if added := -vocabulary % VOCABULARY_MULTIPLE:
        sentence = (
            f"Adds {added} entries that no token uses, {added * width:,} weights in each matrix of the vocabulary; "
            "training makes them improbable. Tokens keep their ids."
        )
        yield ShapeChange("vocabulary", {f"{key}.vocab_size": vocabulary + added}, "model", sentence)
    for size in _multiples(width, WIDTH_MULTIPLE // 2):
        counts = (heads, *(size // head_width for head_width in HEAD_WIDTHS))
        count = next((count for count in counts if _takes(model, size, count) and size // count % 8 == 0), None)
        if count is not None:
            patch = {f"{key}.hidden_size": size} | ({} if count == heads else {f"{key}.num_heads": count})
            yield ShapeChange("width", patch, "model", f"Heads of {size // count}. A wider model has more weights.")
    for size in _multiples(model.intermediate_size, WIDTH_MULTIPLE):
        sentence = "Feed-forward layers of another width."
        yield ShapeChange("feed-forward", {f"{key}.intermediate_size": size}, "model", sentence)
    for head_width in HEAD_WIDTHS if width // heads not in HEAD_WIDTHS else ():
        if width % head_width == 0 and _takes(model, width, width // head_width):
            sentence = f"Heads of {head_width} instead of {width // heads}; as many weights."
            yield ShapeChange("heads", {f"{key}.num_heads": width // head_width}, "model", sentence)


def _takes(model: NewModel, width: int, heads: int) -> bool:
    """Return whether a model may have this width and number of heads."""
    kv_heads = model.kv_heads if isinstance(model, NewCausalConfig) and model.num_kv_heads else heads
    return heads > 0 and width % heads == 0 and width // heads % 2 == 0 and heads % kv_heads == 0


def _loader_changes(loader: LoaderConfig, *, world_size: int, rows: int) -> Iterator[ShapeChange]:
    layout, batch = loader.layout, loader.global_batch_size
    if isinstance(layout, LineLayout):
        lengths = {size for step in LINE_STEPS for size in _multiples(layout.tokens, step)}
        for tokens in sorted(lengths):
            if layout.longest_row <= tokens < 2 * layout.tokens and tokens > layout.tokens // 2:
                share = tokens / layout.tokens
                yield ShapeChange("micro-batch", {"loader.layout.tokens": tokens}, "training", _OTHER_PASSES, share)
    elif not isinstance(layout, PackedLayout):
        for count in sorted({rows + sign * step for step in ROW_STEPS for sign in (1, -1)}):
            if rows / 2 < count < 2 * rows:
                yield _row_change(loader, rows, count)
    for lanes in (loader.lanes // 2, 2 * loader.lanes):
        if world_size <= lanes <= batch and batch % lanes == 0 and not loader.has_budget:
            sentence = "The same rows a step, in other micro-batches and in another order."
            yield ShapeChange("lanes", {"loader.lanes": lanes}, "training", sentence, loader.lanes / lanes)


_OTHER_PASSES = "The same rows a step in other passes."


def _row_change(loader: LoaderConfig, rows: int, count: int) -> ShapeChange:
    if (budget := loader.max_micro_batch_tokens) is not None:
        patch = {"loader.max_micro_batch_tokens": -(-budget * count // rows)}
        return ShapeChange("micro-batch", patch, "rounding", _OTHER_PASSES, count / rows)
    patch = {"loader.global_batch_size": loader.lanes * count}
    sentence = f"A batch of {loader.lanes * count:,} rows: another number of steps, perhaps another learning rate."
    return ShapeChange("micro-batch", patch, "training", sentence, count / rows)


def _multiples(size: int, multiple: int) -> list[int]:
    """Return the next smaller and larger multiples; none if the size is one."""
    if size % multiple == 0:
        return []
    return [found for found in (size // multiple * multiple, -(-size // multiple) * multiple) if found]
