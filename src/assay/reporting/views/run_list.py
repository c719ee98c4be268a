"""All runs, a line each."""

from assay.records.evaluation import AUC
from assay.records.run import RunStatus
from assay.reporting.views.view import UtcTime, View
from assay.store.ledger.ledger import Ledger
from assay.store.ledger.summary import run_summaries


class RunHead(View):
    """How a run stands: what a list of runs and the run itself both say."""

    run_id: str
    name: str | None
    """The recipe's."""
    status: RunStatus
    """How it stands. `failed`: its last attempt died and no other was begun. `gone`: it is not done, and the
    process that drove it is no more. `unknown`: that process is on another host, or on no record, and nothing
    was heard of the run for 15 minutes."""
    created: UtcTime
    step: int
    """The step of the last intact commit; 0 before the first."""
    total_steps: int | None
    """Steps of the whole run; null where nobody wrote it down."""
    world_sizes: tuple[int, ...]
    """Ranks of each attempt."""


class RunLine(RunHead):
    """One run of the list."""

    attempts: int
    """How many."""
    metric: str | None
    """By which runs of its method are compared, e.g. `AUC`; null before the first evaluation."""
    value: float | None
    """The value of that metric, in the last evaluation."""
    auc: float | None
    """The same where the metric is the AUC; else null."""
    device_hours: float
    """Device-hours of all attempts that have ended, over all ranks."""
    started: str | None
    """Where it was started last: `Slurm job 12`, `process 345 on node7`; null where nobody wrote it down."""


def run_lines(ledger: Ledger, *, drills: bool = False) -> list[RunLine]:
    """The newest first; runs that were made by drills only where they are asked for."""
    return [
        RunLine.of(
            summary,
            run_id=summary.run.run_id,
            name=summary.run.recipe.get("name"),
            created=summary.run.created_s,
            world_sizes=tuple(attempt.world_size for attempt in summary.attempts),
            attempts=len(summary.attempts),
            auc=summary.value if summary.metric == AUC.title else None,
            device_hours=summary.device_s / 3600,
            started=summary.launch.where() if summary.launch else None,
        )
        for summary in run_summaries(ledger)
        if drills or not summary.run.is_drill
    ]
