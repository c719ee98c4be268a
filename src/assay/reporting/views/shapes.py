"""The view of `assay doctor shapes`: the operators of a step, what they lose, and what would lose less."""

from typing import Any, Literal

from assay.reporting.views.view import View
from assay.throughput.shape_changes import Aspect, Changed

TimeBasis = Literal["estimate", "corrected"]
"""From the data sheet; or corrected by passes that were measured on the device."""


class OperatorView(View):
    """The products of three sizes, forward and backward, or the attention of one kind of layer, in all passes of the
    busiest worker."""

    kind: Literal["product", "attention"]
    """A matrix product, or fused attention."""
    names: tuple[str, ...]
    """Modules, with `*` for the number of a layer."""
    sizes: str
    """For a product, rows x inputs x outputs; for attention, sequences x tokens x heads x width."""
    calls: int
    """In one pass."""
    flops: int
    """In one pass, as torch counts them."""
    num_bytes: int
    """Matrices read and written in one pass."""
    seconds: float
    """In one pass."""
    lost: dict[str, float]
    """Share of these seconds that is lost to `tiles`, `waves`, `alignment` and `vocabulary`."""


class CollectiveView(View):
    """Communication of all workers in a step."""

    name: str
    num_bytes: int
    """Sent by the busiest worker."""
    seconds: float
    """In a step, if nothing overlaps with it."""


class ShapeAdviceView(View):
    """A change that wastes less."""

    aspect: Aspect
    """What is too large, too small or uneven."""
    name: str
    patch: dict[str, Any]
    """Keys of the recipe to values."""
    changes: Changed
    """`rounding`: results up to rounding and random draws; `training`: which rows share a step; `model`: the model."""
    consequence: str
    """What else changes, as a sentence."""
    time_saved: float
    """Share of the step's time for as many rows; negative if the model does more."""
    waste_saved: float
    """Share of the time for as much arithmetic of the model; for the vocabulary and rows as `time_saved`."""
    measured_saved: float | None
    """As `time_saved`, from passes of both that were measured here; null if they were not."""


class ShapeCandidateView(View):
    """A change of one key, as campaigns and ladders take it."""

    name: str
    because: str
    """Why it is proposed, with its estimated gain."""
    patch: dict[str, Any]
    """Keys of the recipe to values."""


class ShapesView(View):
    """The shapes of a training step on a device."""

    recipe_name: str
    """`name` in the recipe."""
    device: str
    """Its name in the table of data sheets, or `cpu`."""
    source: str
    """Where the device's figures come from."""
    workers: int
    """World size."""
    basis: TimeBasis
    """`estimate`: from data sheets. `corrected`: by passes that were measured here."""
    rows: tuple[int, ...]
    """In the micro-batches that were traced."""
    tokens: tuple[int, ...]
    """Tokens that each of them computes, padding counted."""
    passes: float
    """Passes of the busiest worker in a step."""
    step_s: float
    """Passes, sums of lanes and the update of the busiest worker."""
    pass_s: float
    """Mean of a forward and backward pass."""
    pass_parts_s: dict[str, float]
    """Products, attention, all other operators."""
    update_s: float
    """Sums of lanes and the optimizer, estimated."""
    model_share: float | None
    """FLOPs of a pass over what the device could do in its time in bfloat16; null on a CPU."""
    operators: tuple[OperatorView, ...]
    """The longest first."""
    collectives: tuple[CollectiveView, ...]
    """Estimated."""
    memory_bytes: dict[str, int]
    """A worker's memory by part; its activations as traced."""
    device_bytes: float
    """Memory of the device."""
    advice: tuple[ShapeAdviceView, ...]
    """What saves the most first."""
    candidates: tuple[ShapeCandidateView, ...]
    """The advice that changes one key."""
    notes: tuple[str, ...]
    """What the estimate leaves out, as sentences."""
