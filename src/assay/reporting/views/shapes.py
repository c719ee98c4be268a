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
    names: tuple[str, ...]
    """Modules, with `*` for the number of a layer."""
    sizes: str
    """Of a product, rows x inputs x outputs; of attention, sequences x tokens x heads x width."""
    calls: int
    """Of one pass."""
    flops: int
    """Of one pass, as torch counts them."""
    num_bytes: int
    """Of one pass: matrices read and written."""
    seconds: float
    """Of one pass."""
    lost: dict[str, float]
    """Share of these seconds that is lost to `tiles`, `waves`, `alignment` and `vocabulary`."""


class CollectiveView(View):
    """Communication of all workers in a step."""

    name: str
    num_bytes: int
    """Sent by the busiest worker."""
    seconds: float


class ShapeAdviceView(View):
    """A change that wastes less."""

    aspect: Aspect
    name: str
    patch: dict[str, Any]
    changes: Changed
    """`rounding`: results up to rounding and random draws; `training`: which rows share a step; `model`: the model."""
    consequence: str
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
    patch: dict[str, Any]


class ShapesView(View):
    """The shapes of a training step on a device."""

    recipe_name: str
    device: str
    source: str
    """Of the device's figures."""
    workers: int
    basis: TimeBasis
    rows: tuple[int, ...]
    """Of the micro-batches that were traced."""
    tokens: tuple[int, ...]
    """Tokens that each of them computes, padding counted."""
    passes: float
    """Passes of the busiest worker in a step."""
    step_s: float
    pass_s: float
    pass_parts_s: dict[str, float]
    """Products, attention, all other operators."""
    update_s: float
    """Sums of lanes and the optimizer, estimated."""
    model_share: float | None
    """FLOPs of a pass over what the device could do in its time in bfloat16; null on a CPU."""
    operators: tuple[OperatorView, ...]
    collectives: tuple[CollectiveView, ...]
    """Estimated."""
    memory_bytes: dict[str, int]
    """Of a worker by part; its activations as traced."""
    device_bytes: float
    advice: tuple[ShapeAdviceView, ...]
    candidates: tuple[ShapeCandidateView, ...]
    """The advice that changes one key."""
    notes: tuple[str, ...]
