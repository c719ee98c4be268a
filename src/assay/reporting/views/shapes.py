"""The view of `assay doctor shapes`: the operators of a step, what they lose, and what would lose less."""

from typing import Any, Literal

from assay.reporting.views.view import View
from assay.throughput.shape_changes import Aspect, Changed


class OperatorView(View):
    """The products of three sizes, forward and backward, or the attention of one kind of layer, in one pass."""

    kind: Literal["product", "attention"]
    """A matrix product, or fused attention."""
    names: tuple[str, ...]
    """Modules, with `*` for the number of a layer."""
    sizes: str
    """For a product, rows x inputs x outputs; for attention, sequences x tokens x heads x width."""
    calls: int
    """Times that it is computed."""
    flops: int
    """As torch counts them."""
    num_bytes: int
    """Matrices read and written."""
    seconds: float
    """Time of all calls."""
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
    """Share of the step's time for as many tokens; negative if the model does more."""
    waste_saved: float
    """Share of the time for as much arithmetic of the model; for the vocabulary and rows as `time_saved`."""
    measured_saved: float | None
    """As `time_saved`, from passes of both that were measured here; null if they were not."""


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
    is_measured: bool
    """Whether passes that were measured here correct the estimate."""
    rows: int
    """In the micro-batch that was traced, which has a median number of tokens."""
    tokens: int
    """Computed in a pass over it, padding counted."""
    passes: float
    """Passes of the busiest worker in a step."""
    step_s: float
    """Passes, sums of lanes, the update and the exchange of the busiest worker."""
    pass_s: float
    """A forward and backward pass."""
    pass_parts_s: dict[str, float]
    """Products, attention, all other operators, and waiting for the host to start them."""
    update_s: float
    """Sums of lanes and the optimizer, estimated."""
    model_share: float | None
    """FLOPs of a pass over what the device could do in its time in bfloat16; null on a CPU."""
    operators: tuple[OperatorView, ...]
    """The longest first."""
    collectives: tuple[CollectiveView, ...]
    """Estimated."""
    memory_bytes: dict[str, int]
    """A worker's memory by part, with the activations of the largest micro-batch."""
    device_bytes: float
    """Memory of the device."""
    advice: tuple[ShapeAdviceView, ...]
    """What saves the most first."""
    candidates: tuple[dict[str, Any], ...]
    """`name`, `because` and `patch` of the advice that changes one key, as campaigns and ladders take them."""
    notes: tuple[str, ...]
    """What the estimate leaves out, as sentences."""
