"""What a recipe will do and cost, known before it runs."""

from typing import Any

from assay.reporting.views.dataset_order import OrderView
from assay.reporting.views.view import View


class CalibrationView(View):
    """Some seconds of real steps on this machine."""

    num_steps: int
    """That the speed was measured over."""
    startup_s: float
    """From the beginning to the end of the first step."""
    seconds_per_token: float
    """Wall-clock, all ranks together."""
    commit_s: float
    """For which a rank was held up by the last commit, at the most."""
    peak_bytes: int
    """The host's memory that the rank which held most took."""


class CheckView(View):
    """A recipe on its dataset, on so many workers."""

    num_steps: int
    """Steps of the whole run."""
    steps_per_epoch: int
    """In one pass over the rows."""
    num_rows: int
    num_tokens: float
    """Learned in all; where rows are prompts, theirs."""
    answer_tokens: int
    """In all answers to prompts, if each is as long as it may be; 0 where rows are no prompts."""
    validation_tokens: float
    """In one evaluation."""
    parameters: int | None
    """Null where nobody knows before the model is made."""
    memory_bytes: dict[str, int] | None
    """What a rank takes by a formula, in float32, part by part; null likewise."""
    num_commits: int | None
    """Null where the measured cost of one decides."""
    num_evaluations: int
    """The one at the end counted."""
    remarks: tuple[str, ...]
    """Warnings: what is odd, and may be meant."""
    world_size: int
    wall_s: float | None
    """Expected of the whole run if nothing dies; null where nothing was measured."""
    measured: CalibrationView | None
    """Null with `--check-seconds 0`."""
    order: OrderView
    """How well its order mixes the rows."""
    recipe: dict[str, Any]
    """Resolved, defaults included."""
