"""Lines of `assay train RECIPE --check`: steps, time, memory, notes, tokens and commits."""

from collections.abc import Iterator, Mapping

from assay.base.config import LoadedConfig, validated
from assay.base.units import bytes_text, count_text, duration_text, number_of
from assay.reporting.values import device_hours_text
from assay.reporting.views.check import CalibrationView, CheckView
from assay.throughput.outer_steps import change_bytes
from assay.training.outer.config import OuterConfig
from assay.training.recipe import Recipe
from assay.training.trainer.config import TrainerConfig


def check_lines(found: CheckView) -> Iterator[str]:
    """Yield the lines of the check."""
    recipe, measured = validated(Recipe, LoadedConfig(found.recipe, {})), found.measured
    trainer = recipe.trainer
    epochs = found.num_steps / found.steps_per_epoch
    epoch = f"{number_of(found.steps_per_epoch, 'step')} over {number_of(found.num_rows, 'row')}"
    yield f"steps        {found.num_steps:,}: {epochs:.3g} epoch{'' if epochs == 1 else 's'} of {epoch}"
    if measured is not None:
        yield from _time(found, measured)
    if found.memory_bytes is not None:
        yield from _memory(found.memory_bytes, measured)
    for note in found.warnings:
        yield f"note: {note}"
    if found.order.fix is not None:
        windows = f"loader.window_rows={recipe.loader.window_rows}"
        yield f"note: {windows} mixes these rows badly; use loader.window_rows={found.order.fix.window_rows}"
    parameters = "unknown before the model is built" if found.parameters is None else f"{found.parameters:,}"
    frozen = (
        f" are trained; {found.frozen:,} are frozen (base weights of adapters, a reference model)"
        if found.frozen
        else ""
    )
    yield f"parameters   {parameters}{frozen}"
    tokens_per_step = count_text(found.num_tokens / found.num_steps)
    of_prompts = ", of prompts" if found.completions else ""
    yield f"tokens       {count_text(found.num_tokens)}, {tokens_per_step} a step{of_prompts}"
    if found.completions:
        sampled, sampled_per_step = (
            count_text(item) for item in (found.completion_tokens, found.completion_tokens / found.num_steps)
        )
        yield f"             and of {found.completions} answers to each up to {sampled}, {sampled_per_step} a step"
    if recipe.outer is not None:
        yield f"clusters     {_outer_steps(found, recipe.outer)}"
        if measured is not None:
            yield from _deadline_note(recipe.outer, sum(measured.phase_s.values()))
    yield f"commits      {_commits(found, trainer)}"
    evaluate_every = trainer.evaluate_every if found.num_evaluations > 1 else None
    during = f"every {number_of(evaluate_every, 'step')} and " if evaluate_every else ""
    yield f"evaluations  {during}at the end: {found.num_evaluations:,}"


def _memory(memory: Mapping[str, int], measured: CalibrationView | None) -> Iterator[str]:
    parts = ", ".join(f"{name} {bytes_text(num_bytes)}" for name, num_bytes in memory.items() if num_bytes)
    yield f"memory       {bytes_text(sum(memory.values()))} a rank, float32, plus Python and its libraries: {parts}"
    if measured is not None and measured.peak_bytes:
        yield f"             measured here, including those: {bytes_text(measured.peak_bytes)} of the host's memory"


def _outer_steps(found: CheckView, outer: OuterConfig) -> str:
    count = number_of(-(-found.num_steps // outer.every), "outer step")
    sent = "" if found.parameters is None else f", each {bytes_text(change_bytes(found.parameters, outer))} a cluster"
    return f"{outer.clusters} are expected; {count}, after every {outer.every} steps{sent}"


def _deadline_note(outer: OuterConfig, step_s: float) -> Iterator[str]:
    """Warn of a deadline that is shorter than the inner steps of a cluster's lanes; `step_s`: a step of all lanes."""
    inner_s = outer.every * step_s / outer.clusters
    if inner_s > outer.deadline_s:
        yield (
            f"note: outer.deadline_s={outer.deadline_s:g}: {outer.every} inner steps of a cluster take about "
            f"{duration_text(inner_s)}, so the first part will be refused. Use outer.deadline_s={2 * inner_s:.2g} or "
            "more, or a smaller outer.every"
        )


def _commits(found: CheckView, trainer: TrainerConfig) -> str:
    if trainer.commit_every == "auto" or found.num_commits is None:
        return "at the interval that loses the least time by their measured cost, and at the end (auto)"
    evaluations = " and at every evaluation," if found.num_evaluations > 1 else ""
    if trainer.commit_every > found.num_steps and not evaluations:
        return "at the end: 1"
    return f"every {number_of(trainer.commit_every, 'step')},{evaluations} and at the end: {found.num_commits:,}"


def _time(found: CheckView, measured: CalibrationView) -> Iterator[str]:
    wall_s, world_size = found.wall_s or 0.0, found.world_size
    held = device_hours_text(wall_s * world_size)
    yield (
        f"time         {duration_text(wall_s)} on {world_size} worker{'s' if world_size > 1 else ''}: {held} "
        "of device time, without failures"
    )
    speed, start = count_text(1 / measured.seconds_per_token), duration_text(measured.startup_s)
    yield (
        f"             measured here over {number_of(measured.num_steps, 'real step')}: {speed} tokens/s; "
        f"{start} to the first step; a commit {duration_text(measured.commit_s)}"
    )
    step_s = sum(measured.phase_s.values())
    phases = [
        f"{phase} {spent_s / step_s:.0%}" for phase, spent_s in measured.phase_s.items() if spent_s >= step_s / 100
    ]
    yield f"             of a step of {duration_text(step_s)}: {', '.join(phases)}"
    if measured.gpu_peak_bytes:
        waits = "" if measured.host_waits is None else f"; the host waits {measured.host_waits:.3g} times a step"
        mfu = "MFU unknown for this card" if measured.mfu is None else f"MFU {measured.mfu:.1%}"
        yield f"             {mfu}, {bytes_text(measured.gpu_peak_bytes)} of GPU memory{waits} (docs/gpu.md)"
