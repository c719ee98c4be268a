"""The view of `assay train --check`: what a recipe needs and costs, before it runs."""

from typing import Any

from assay.records.phase import Phase
from assay.reporting.views.dataset_order import OrderView
from assay.reporting.views.view import View


class CalibrationView(View):
    """Measured steps."""

    num_steps: int
    startup_s: float
    """Until the first step's end."""
    seconds_per_token: float
    """Wall-clock, all ranks."""
    commit_s: float
    """Maximum blocking of a rank."""
    peak_bytes: int
    """For the largest rank."""
    phase_s: dict[Phase, float]
    """Mean seconds of a step by phase, of rank 0: for prompts, generation, reward and compute apart."""
    mfu: float | None
    """For rank 0; null on CPUs and for cards that are not listed."""
    gpu_peak_bytes: int
    """For rank 0; 0 on CPUs."""
    host_waits: float | None
    """Per step."""


class CheckView(View):
    """What a recipe needs on its dataset."""

    num_steps: int
    steps_per_epoch: int
    num_rows: int
    num_tokens: float
    """Trained tokens of the whole run; for prompts, prompt tokens."""
    completions: int
    """For each prompt; 0 without prompts."""
    completion_tokens: int
    """If all have the maximum length; 0 without prompts."""
    validation_tokens: float
    """Per evaluation."""
    parameters: int | None
    frozen: int
    """Parameters that are not trained: below adapters, or of a reference model."""
    memory_bytes: dict[str, int] | None
    """Estimate for a rank, by part."""
    num_commits: int | None
    num_evaluations: int
    warnings: tuple[str, ...]
    world_size: int
    wall_s: float | None
    """Expected without failures."""
    measured: CalibrationView | None
    """Null with `--measure 0`."""
    order: OrderView
    """Quality of the shuffle."""
    recipe: dict[str, Any]
    """Resolved."""
