"""The view of `assay train --check`: what a recipe needs and costs, before it runs."""

from typing import Any

from assay.reporting.views.dataset_order import OrderView
from assay.reporting.views.view import View


class CalibrationView(View):
    """Measured steps on this machine."""

    num_steps: int
    startup_s: float
    """Until the end of the first step."""
    seconds_per_token: float
    """Wall-clock, all ranks together."""
    commit_s: float
    """Time a rank was blocked, at most."""
    peak_bytes: int
    """Host memory of the largest rank."""


class CheckView(View):
    """What a recipe needs on its dataset."""

    num_steps: int
    steps_per_epoch: int
    num_rows: int
    num_tokens: float
    """Trained tokens of the whole run; for prompts, prompt tokens."""
    completion_tokens: int
    """If every completion has the maximum length; 0 without prompts."""
    validation_tokens: float
    """Per evaluation."""
    parameters: int | None
    memory_bytes: dict[str, int] | None
    """Estimated float32 memory of a rank, by part."""
    num_commits: int | None
    num_evaluations: int
    warnings: tuple[str, ...]
    world_size: int
    wall_s: float | None
    """Expected without failures."""
    measured: CalibrationView | None
    """Null with `--check-seconds 0`."""
    order: OrderView
    """How well the rows are shuffled."""
    recipe: dict[str, Any]
    """Resolved, with defaults."""
