"""`assay show RUN`: what a run did, what it cost and what came of it.

The keys of `--json` are stable: `run_tree` names them, `assay show --help` explains them.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from assay.records.commit import LogEntry
    from assay.records.run import Attempt, PhaseSeconds, Run
    from assay.store.ledger.ledger import Ledger

NOTHING_LOST = 2**62
"""The committed step of an attempt whose end nobody knows yet: all of its work may be kept."""


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(run_id: str, as_json: bool) -> None:
    """Show what RUN (its id, or the beginning of it) did, cost and measured.

    \b
    Keys with --json:
      run_id, name, status, created, recipe_sha256, dataset_fingerprint, code_version, run_dir, store_url
      step            of the last intact commit      total_steps   null until known
      weights_digest  SHA-256 of those weights, null before the first commit
      world_sizes     ranks of each attempt          attempts      start, end, steps, outcome, reason
      commits         step, attempt, world_size, folder, weights_digest, rows_learned, metric, is_quarantined
      device_seconds  by phase, over all ranks       lost_steps    steps that were made and rolled back
      metrics         by name: last_step, last, minimum, maximum, num_points, num_nan; of rank 0
      evaluation      the last one, null before      audit         the last report, null before
      last_seen       the last sign of life of any rank
    """
    import json

    from assay.base.errors import ConfigError
    from assay.store.home import Home

    home = Home.from_environment()
    ledger = home.find_ledger()
    if ledger is None:
        raise ConfigError(f"no run '{run_id}': there are no runs in {home.folder}. Is $ASSAY_HOME right?")
    with ledger:
        tree = run_tree(ledger, run_id)
        if as_json:
            click.echo(json.dumps(tree))
        else:
            _print(ledger, tree)


def run_tree(ledger: "Ledger", run_id: str) -> dict[str, Any]:
    """A run as `assay show --json` prints it, brought up to date with its folder first."""
    from assay.base.clock import utc_text
    from assay.store.ledger.summary import intact_commits, run_status
    from assay.store.metrics.curves import last_sign_of_life_s, metric_summaries

    run = ledger.run(run_id)
    entries = _up_to_date(ledger, run)
    attempts = ledger.attempts(run.run_id)
    commits = intact_commits(entries)
    finished = next((entry for entry in entries if entry.type == "finished"), None)
    evaluations = ledger.evaluations(run.run_id)
    audit = ledger.audit(run.run_id)
    seen_s = last_sign_of_life_s(ledger, run.run_id)
    return {
        "run_id": run.run_id,
        "name": run.recipe.get("name"),
        "status": run_status(attempts, is_finished=finished is not None),
        "created": utc_text(run.created_s),
        "recipe_sha256": run.recipe_sha256,
        "dataset_fingerprint": run.dataset_fingerprint,
        "code_version": run.code_version,
        "run_dir": run.run_dir,
        "store_url": run.store_url,
        "step": commits[-1].step if commits else 0,
        "total_steps": finished.step if finished else _planned_steps(run),
        "weights_digest": commits[-1].weights_digest if commits else None,
        "world_sizes": [attempt.world_size for attempt in attempts],
        "attempts": [_attempt_tree(attempt) for attempt in attempts],
        "commits": _commit_trees(entries),
        "device_seconds": _device_seconds(_phase_seconds(ledger, run, attempts, seen_s)),
        "lost_steps": _lost_steps(ledger, run, attempts),
        "metrics": {
            metric.name: {
                "last_step": metric.last_step,
                "last": _finite(metric.last_value),
                "minimum": _finite(metric.minimum),
                "maximum": _finite(metric.maximum),
                "num_points": metric.num_points,
                "num_nan": metric.num_nan,
            }
            for metric in metric_summaries(ledger, run.run_id)
        },
        "evaluation": evaluations[-1].to_tree() if evaluations else None,
        "audit": audit.to_tree() if audit else None,
        "last_seen": None if seen_s is None else utc_text(seen_s),
    }


def _up_to_date(ledger: "Ledger", run: "Run") -> "list[LogEntry]":
    """The run's log; what its folder holds and the ledger does not is recorded first, where it is here."""
    from assay.store.commit_log import CommitLog
    from assay.store.metrics.fold import fold_run
    from assay.store.objects import open_store

    fold_run(ledger, run)
    if Path(run.store_url).is_dir():
        entries = CommitLog(open_store(run.store_url)).entries()
        ledger.record_log_entries(run.run_id, dict(enumerate(entries)))
    return ledger.log_entries(run.run_id)


def _finite(value: float | None) -> float | None:
    """JSON knows no infinity."""
    return value if value is not None and math.isfinite(value) else None


def _planned_steps(run: "Run") -> int | None:
    from assay.base.errors import AssayError
    from assay.launch.run import planned_steps

    try:
        return planned_steps(run)
    except (AssayError, ValueError):
        return None  # the dataset is not here or is another by now; or another assay wrote the recipe


def _attempt_tree(attempt: "Attempt") -> dict[str, Any]:
    from assay.base.clock import utc_text

    return {
        "attempt": attempt.attempt,
        "world_size": attempt.world_size,
        "started": utc_text(attempt.started_s),
        "ended": None if attempt.ended_s is None else utc_text(attempt.ended_s),
        "held_s": None if attempt.ended_s is None else attempt.ended_s - attempt.started_s,
        "start_step": attempt.start_step,
        "end_step": attempt.end_step,
        "outcome": attempt.outcome,
        "reason": attempt.reason,
        "suspects": [suspect.model_dump(mode="json") for suspect in attempt.suspects],
    }


def _commit_trees(entries: "Sequence[LogEntry]") -> list[dict[str, Any]]:
    from assay.base.clock import utc_text
    from assay.records.commit import Commit
    from assay.store.ledger.summary import intact_commits

    intact = {commit.folder for commit in intact_commits(entries)}
    return [
        {
            "step": entry.step,
            "attempt": entry.attempt,
            "world_size": entry.world_size,
            "committed": utc_text(entry.committed_s),
            "folder": entry.folder,
            "num_bytes": sum(file.num_bytes for file in entry.files),
            "weights_digest": entry.weights_digest,
            "rows_learned": entry.rows_learned,
            "metric": entry.metric,
            "is_verified": entry.is_verified,
            "is_quarantined": entry.folder not in intact,
        }
        for entry in entries
        if isinstance(entry, Commit)
    ]


def _phase_seconds(
    ledger: "Ledger", run: "Run", attempts: "list[Attempt]", seen_s: float | None
) -> "list[PhaseSeconds]":
    """As recorded; of an attempt whose end nobody recorded, until the last sign of life."""
    from assay.store.metrics.phases import rank_phase_seconds

    recorded = ledger.phase_seconds(run.run_id)
    settled = {phases.attempt for phases in recorded}
    for attempt in attempts:
        if attempt.attempt not in settled and seen_s is not None:
            held_to_s = max(attempt.ended_s or seen_s, attempt.started_s)
            recorded += [
                rank_phase_seconds(run, attempt, rank, held_to_s=held_to_s, committed_step=NOTHING_LOST)
                for rank in range(attempt.world_size)
            ]
    return recorded


def _device_seconds(phase_seconds: "Sequence[PhaseSeconds]") -> dict[str, float]:
    from assay.cli.screens.terminal import PHASE_STYLES

    totals: dict[str, float] = dict.fromkeys(PHASE_STYLES, 0.0)
    for rank in phase_seconds:
        for phase, seconds in rank.seconds.items():
            totals[phase] += seconds
    return totals


def _lost_steps(ledger: "Ledger", run: "Run", attempts: "Sequence[Attempt]") -> int:
    from assay.store.metrics.curves import metric_series

    if len(attempts) < 2:
        return 0
    return len(metric_series(ledger, run.run_id, "loss", lost=True, max_points=1_000_000_000).steps)


def _print(ledger: "Ledger", tree: dict[str, Any]) -> None:
    from assay.cli.screens.run import print_run

    print_run(ledger, tree)
