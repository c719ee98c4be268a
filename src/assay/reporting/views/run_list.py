"""All runs, a line each."""

from assay.base.errors import ConfigError
from assay.records.run import Run, RunStatus
from assay.reporting.views.view import UtcTime, View
from assay.store.ledger.ledger import Ledger
from assay.store.ledger.summary import RunSummary, run_summaries
from assay.training.recipe import recipe_of


class RunLine(View):
    """One run of the list."""

    run_id: str
    name: str | None
    """The recipe's."""
    status: RunStatus
    step: int
    """Of the last intact commit; 0 before the first."""
    total_steps: int | None
    """Steps of the whole run; null where nobody wrote it down."""
    world_sizes: tuple[int, ...]
    """Ranks of each attempt."""
    attempts: int
    """How many."""
    metric: str | None
    """By which runs of its method are compared, e.g. `auc`; null where this assay can not read its recipe."""
    value: float | None
    """Of that metric, in the last evaluation; null before it."""
    device_hours: float
    """Of all attempts that have ended, over all ranks."""
    created: UtcTime
    started: str | None
    """Where it was started last: `Slurm job 12`, `process 345 on node7`; null where nobody wrote it down."""


def run_lines(ledger: Ledger) -> list[RunLine]:
    """The newest first."""
    started = {launch.run_id: launch.where() for launch in ledger.launches()}
    return [_line(summary, started.get(summary.run.run_id)) for summary in run_summaries(ledger)]


def _line(summary: RunSummary, started: str | None) -> RunLine:
    return RunLine(
        run_id=summary.run.run_id,
        name=summary.run.recipe.get("name"),
        status=summary.status,
        step=summary.step,
        total_steps=summary.total_steps,
        world_sizes=tuple(attempt.world_size for attempt in summary.attempts),
        attempts=len(summary.attempts),
        metric=_metric(summary.run),
        value=summary.headline,
        device_hours=summary.device_s / 3600,
        created=summary.run.created_s,
        started=started,
    )


def _metric(run: Run) -> str | None:
    try:
        return recipe_of(run).method.predictions.metric.title
    except ConfigError:
        return None
