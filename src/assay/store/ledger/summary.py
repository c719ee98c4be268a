"""Status and progress of runs: one row per run for lists of thousands, read in a few queries."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from assay.base.clock import SystemClock
from assay.records.commit import Commit, CommitQuarantined, LogEntry
from assay.records.evaluation import AUC, ClassifierEvaluation, Metric, evaluation_from_json
from assay.records.launch import Launch
from assay.records.run import Attempt, ImportedFrom, Run, RunStatus
from assay.store.launches import is_open_here, process_state
from assay.store.ledger.database import Connection
from assay.store.ledger.ledger import Ledger
from assay.store.ledger.tables import UNFINISHED

NOT_EVALUATED = (None, None, None)
STEP_SECONDS = "step_s"
"""The metric that every step of a recorded run logs."""
_LAST_STEP = "SELECT MAX(last_step) FROM metric_series WHERE run_id = :run_id AND attempt = :attempt AND name = :name"
_LAST_LOSSES = "SELECT run_id, last_value FROM metric_series WHERE name = 'loss' AND rank = 0 ORDER BY attempt"
SILENT_S = 900.0
"""A run on another host counts as running if it was heard of within this time."""


class RunSummary(NamedTuple):
    """Status and progress of a run."""

    run: Run
    status: RunStatus
    step: int
    """The step of the last intact commit; 0 before the first."""
    total_steps: int
    """Steps of the whole run."""
    attempts: tuple[Attempt, ...]
    metric: str | None
    """Title of its method's headline metric; None before the first evaluation."""
    value: float | None
    """The value of that metric, in the last evaluation."""
    higher_is_better: bool | None
    """Whether more of it is better."""
    loss: float | None
    """The last one of rank 0, committed or not."""
    device_s: float
    """Device time of training over all ranks; of an open attempt, until its last sign of life."""
    evaluation_s: float
    """Device time of finished evaluations of its commits."""
    launch: Launch | None
    """Last launch; None if none was recorded."""
    last_seen_s: float | None
    """Last sign of life of a rank, since the epoch; None if there is none."""


def run_status(
    attempts: Sequence[Attempt],
    *,
    created_s: float,
    is_finished: bool,
    launch: Launch | None,
    last_seen_s: float | None,
    imported: ImportedFrom | None = None,
) -> RunStatus:
    """How a run stands. `failed`: its last attempt died and no other was begun.

    `launch`: the last one on record. `last_seen_s`: when a rank was last heard of, since the epoch; before its
    first word the beginning of the run, and of an attempt, is what was heard.
    """
    if imported is not None and not imported.is_recorded():
        return imported.status
    last = attempts[-1].outcome if attempts else "running"
    # A recorded run may begin again after its end.
    if last == "succeeded" if imported is not None else is_finished:
        return "succeeded"
    if last == "preempted":
        return "preempted"
    state = process_state(launch) if launch is not None and launch.process else "elsewhere"
    if state == "running" or (imported is not None and launch is not None and is_open_here(launch)):
        return "running"  # be it between two attempts
    if last in ("killed", "failed"):
        return "failed"
    if state == "ended":
        return "gone"
    now_s = SystemClock().now_s()
    is_heard = last_seen_s is not None and now_s - last_seen_s < SILENT_S
    has_started = any(
        abs(now_s - at_s) < SILENT_S for at_s in (created_s, *(attempt.started_s for attempt in attempts))
    )
    return "running" if is_heard or has_started else "unknown"


def step_without_commits(ledger: Ledger, run: Run, attempts: Sequence[Attempt]) -> int:
    """Return how far a run without commits is: of another tool's run, the last step that is known."""
    if not run.is_recorded():
        return run.num_steps if run.imported else 0
    if not attempts:
        return 0
    last = attempts[-1]
    if (reached := last.end_step) is None:  # it is under way, or died
        of_last = {"run_id": run.run_id, "attempt": last.attempt, "name": STEP_SECONDS}
        with ledger.reading() as connection:
            ((reached,),) = connection.execute(_LAST_STEP, of_last)
    return max(last.start_step, reached or 0)


def intact_commits(entries: Sequence[LogEntry]) -> list[Commit]:
    """Return the intact commits of a log, oldest first; a run resumes from the last one."""
    damaged = {entry.folder for entry in entries if isinstance(entry, CommitQuarantined)}
    return [entry for entry in entries if isinstance(entry, Commit) and entry.folder not in damaged]


def run_summaries(ledger: Ledger, *, is_unfinished: bool = False) -> list[RunSummary]:
    """Return all runs, or those that have not made their last step; newest first."""
    runs = ledger.runs(is_unfinished=is_unfinished)
    attempts: dict[str, list[Attempt]] = {}
    for attempt in ledger.attempts(is_unfinished=is_unfinished):
        attempts.setdefault(attempt.run_id, []).append(attempt)
    launches = {launch.run_id: launch for launch in ledger.launches()}
    with ledger.reading() as connection:
        last_steps = [f"MAX(step) FILTER (WHERE type = '{kind}')" for kind in ("commit", "finished", "quarantine")]
        committed, finished, damaged = _by_run(connection, "log_entries", *last_steps)
        headlines = _last_headlines(connection, UNFINISHED if is_unfinished else "TRUE")
        sums = [f"SUM(held_s) FILTER (WHERE attempt {which} 0)" for which in (">", "=")]
        device_s, evaluation_s = _by_run(connection, "phase_seconds", *sums)
        losses = dict(connection.execute(_LAST_LOSSES))
        (last_seen_s,) = _by_run(connection, "metric_segments", "MAX(last_at_s)")
    for run_id in damaged:
        intact = intact_commits(ledger.log_entries(run_id))
        committed[run_id] = intact[-1].step if intact else 0
    return [
        RunSummary(
            run=run,
            status=run_status(
                of_run,
                created_s=run.created_s,
                is_finished=run.run_id in finished,
                launch=launches.get(run.run_id),
                last_seen_s=last_seen_s.get(run.run_id),
                imported=run.imported,
            ),
            step=step,
            total_steps=max(finished.get(run.run_id, run.num_steps), step),
            attempts=tuple(of_run),
            metric=headlines.get(run.run_id, NOT_EVALUATED)[0],
            value=headlines.get(run.run_id, NOT_EVALUATED)[1],
            higher_is_better=headlines.get(run.run_id, NOT_EVALUATED)[2],
            loss=losses.get(run.run_id),
            device_s=device_s.get(run.run_id, 0.0) + _held_so_far_s(of_run, last_seen_s.get(run.run_id)),
            evaluation_s=evaluation_s.get(run.run_id, 0.0),
            launch=launches.get(run.run_id),
            last_seen_s=last_seen_s.get(run.run_id) or None,
        )
        for run in runs
        for of_run in [attempts.get(run.run_id, [])]
        for step in [committed.get(run.run_id) or step_without_commits(ledger, run, of_run)]
    ]


def _held_so_far_s(attempts: Sequence[Attempt], last_seen_s: float | None) -> float:
    """Return the device-seconds of attempts that have not ended."""
    still = [attempt for attempt in attempts if attempt.ended_s is None]
    return sum(max(0.0, (last_seen_s or 0.0) - attempt.started_s) * attempt.world_size for attempt in still)


def _last_headlines(connection: Connection, where: str) -> dict[str, tuple[str | None, float | None, bool | None]]:
    """Return title, value and direction of the headline metric by run. Classifier rows need no record."""
    rows = connection.execute(
        "SELECT run_id, headline, CASE WHEN record LIKE :pattern THEN NULL ELSE record END FROM evaluations "
        f"WHERE {where} ORDER BY step",
        {"pattern": f'%"kind":"{ClassifierEvaluation.kind}"%'},
    )
    last = {run_id: (value, text) for run_id, value, text in rows}
    metrics = {run_id: AUC if text is None else _metric(text, run_id) for run_id, (_, text) in last.items()}
    return {run_id: (metric.title, last[run_id][0], metric.higher_is_better) for run_id, metric in metrics.items()}


def _metric(text: str, run_id: str) -> Metric:
    return evaluation_from_json(text, source=f"ledger, run {run_id}").headline.metric


def _by_run(connection: Connection, table: str, *values: str) -> list[dict[str, Any]]:
    """Return each value by run, for runs that have it."""
    rows = connection.execute(f"SELECT run_id, {', '.join(values)} FROM {table} GROUP BY run_id")
    return [{run_id: found[at] for run_id, *found in rows if found[at] is not None} for at in range(len(values))]
