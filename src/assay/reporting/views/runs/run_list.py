"""The list of runs: which rows, in which order, and whether the ledger is up to date."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from assay.base.clock import SystemClock
from assay.base.closest_key import closest_key
from assay.base.config import dotted_leaves
from assay.base.errors import ConfigError
from assay.base.units import duration_text
from assay.records.evaluation import AUC
from assay.records.failure import FailureKind
from assay.records.run import Attempt, ImportedFrom, Run, RunStatus
from assay.reporting.views.view import AsWritten, UtcTime, View
from assay.store.ledger.ledger import Ledger
from assay.store.ledger.summary import RunSummary, run_summaries

Sorting = Literal["age", "cost", "name", "seen", "status", "step", "value"]


class RunHead(View):
    """The keys of every run."""

    run_id: str
    name: str | None
    status: RunStatus
    """`gone`: unfinished, and its supervisor died. `unknown`: no sign of life for 15 minutes, and the supervisor
    cannot be checked.
    """
    failure_kind: FailureKind | None = None
    """For the last attempt."""
    created: UtcTime
    step: int
    """For the last intact commit."""
    total_steps: int
    world_sizes: tuple[int, ...]
    """By attempt."""
    last_seen: UtcTime | None
    """For any rank."""
    tags: tuple[str, ...]
    imported: Annotated[ImportedFrom, AsWritten] | None
    """Set for a run of another tracker."""

    def status_text(self) -> str:
        """Return the status with the failure kind, such as `failed: disk full`."""
        why = (self.failure_kind or "").replace("_", " ")
        return f"{self.status}: {why}" if why else self.status


def failure_kind(status: RunStatus, attempts: Sequence[Attempt]) -> FailureKind | None:
    """Return the kind of the failure that ended the last attempt of a failed run."""
    failure = attempts[-1].failure if attempts and status == "failed" else None
    return failure.failure_kind if failure else None


class ImportLine(View):
    """An imported run."""

    run_id: str
    tool: str
    """That wrote the source."""
    tool_run_id: str
    """In the tool, as `name`."""
    name: str
    status: RunStatus
    num_points: int
    """In the source."""
    num_new: int
    """Added by this import."""
    left_out: tuple[str, ...]
    """Contents of the source that cannot be imported."""


class RunLine(RunHead):
    """A row of the run list."""

    attempts: int
    metric: str | None
    """Metric that compares such runs, e.g. `AUC`."""
    value: float | None
    """In the last evaluation."""
    higher_is_better: bool | None
    auc: float | None
    """`value` if the metric is the AUC."""
    device_hours: float
    """Training on all ranks."""
    evaluation_hours: float = 0.0
    started: str | None
    """Where it was last launched, e.g. `Slurm job 12`."""
    forked_from: str | None
    """`RUN@STEP`."""
    note: str | None
    """The last one."""
    written: UtcTime | None = None
    """Last update of the row."""
    written_by: str = ""
    """By process and host."""
    is_stale: bool = False
    """The row may be out of date."""

    def stale_text(self, now_s: float) -> str:
        """Return a warning that the row may be out of date."""
        return stale_text(self.run_id, (self.written or now_s, self.written_by), now_s)


def stale_text(run_id: str, written: tuple[float, str], now_s: float) -> str:
    """Return a warning that names when and by which process a run's row was last written."""
    return (
        f"{run_id}: the ledger row was last written {duration_text(now_s - written[0])} ago, by {written[1]}, and "
        "the run has changed since: 'assay runs --rebuild' updates the row."
    )


NEVER_WRITTEN: tuple[float | None, str] = (None, "")
SLACK_S, SILENT_WRITER_S = 10.0, 60.0
"""By how much a folder may be newer than its row; how long the writer of an open run may be silent."""


class Selection(NamedTuple):
    """Filters and order of the list."""

    status: tuple[str, ...] = ()
    """Any of these; all if empty."""
    tags: tuple[str, ...] = ()
    """All of these."""
    text: str = ""
    """Substring of the run's id, the recipe's name or a note."""
    where: Mapping[str, Any] = {}
    """Recipe key to value."""
    drills: bool = False
    """Include runs of drills."""
    sort: Sorting = "age"
    """Newest, most recently seen, most expensive or best first; names alphabetically."""
    limit: int | None = None


def run_lines(
    ledger: Ledger,
    selection: Selection = Selection(),  # noqa: B008 (immutable)
    summaries: Sequence[RunSummary] | None = None,
) -> list[RunLine]:
    """Return the selected runs, newest first by default. `summaries`: of all runs, if they were read before."""
    annotations, writes = {annotation.run_id: annotation for annotation in ledger.run_notes()}, ledger.last_writes()
    read = current_summaries(ledger) if summaries is None else summaries
    listed = [summary for summary in read if selection.drills or not summary.run.is_drill]
    _check_recipe_keys(listed, selection.where)
    chosen = [summary for summary in listed if _has_values(summary, selection.where)]
    lines = [
        RunLine.of(
            summary,
            run_id=summary.run.run_id,
            name=summary.run.recipe.get("name"),
            failure_kind=failure_kind(summary.status, summary.attempts),
            created=summary.run.created_s,
            world_sizes=tuple(attempt.world_size for attempt in summary.attempts),
            last_seen=summary.last_seen_s,
            tags=run_annotations.tags if (run_annotations := annotations.get(summary.run.run_id)) else (),
            written=(last_write := writes.get(summary.run.run_id, NEVER_WRITTEN))[0],
            written_by=last_write[1],
            is_stale=summary.run.imported is None
            and last_write[0] is not None
            and is_stale(Path(summary.run.run_dir), summary.status, last_write[0]),
            imported=summary.run.imported,
            attempts=len(summary.attempts),
            auc=summary.value if summary.metric == AUC.title else None,
            device_hours=summary.device_s / 3600,
            evaluation_hours=summary.evaluation_s / 3600,
            started=summary.launch.where() if summary.launch else None,
            forked_from=str(summary.run.parent) if summary.run.parent else None,
            note=run_annotations.notes[-1].text if run_annotations and run_annotations.notes else None,
        )
        for summary in chosen
    ]
    notes = {
        run_id: " ".join(note.text for note in run_annotations.notes) for run_id, run_annotations in annotations.items()
    }
    selected = [line for line in lines if _matches(line, selection, notes.get(line.run_id, ""))]
    key = _ORDER[selection.sort]
    return sorted(selected, key=key)[: selection.limit]


def current_summaries(ledger: Ledger, *, is_unfinished: bool = False) -> list[RunSummary]:
    """Return the summaries of all runs, or of unfinished ones. Reads the folders of runs whose supervisor died before
    it could update the ledger."""
    found = run_summaries(ledger, is_unfinished=is_unfinished)
    if not (
        behind := [summary.run for summary in found if summary.status == "gone" and _is_behind(ledger, summary.run)]
    ):
        return found
    from assay.store.ledger.catch_up import catch_up  # here, for it brings the object stores along

    for run in behind:
        catch_up(ledger, run)
    return run_summaries(ledger, is_unfinished=is_unfinished)


def _is_behind(ledger: Ledger, run: Run) -> bool:
    log = Path(run.store_url, "log")
    return log.is_dir() and sum(1 for _ in log.iterdir()) > len(ledger.log_entries(run.run_id))


def is_stale(folder: Path, status: RunStatus, written_s: float) -> bool:
    """Return whether a run's folder is newer than its row, or the run is open and nothing updates its row."""
    found = [path.stat().st_mtime for path in (folder / "attempts", folder / "log") if path.is_dir()]
    is_open = status in ("running", "unknown")
    newest_s = max([*found, SystemClock().now_s() if is_open else written_s])
    return newest_s - written_s > (SILENT_WRITER_S if is_open else SLACK_S)


_ORDER: dict[str, Callable[[RunLine], Any]] = {
    "age": lambda line: -line.created,
    "cost": lambda line: -line.device_hours,
    "name": lambda line: line.run_id,
    "seen": lambda line: -(line.last_seen or 0.0),
    "status": lambda line: (line.status, -line.created),
    "step": lambda line: -line.step,
    # Metrics of other names have other scales; those without a value come last.
    "value": lambda line: (
        line.value is None,
        line.metric or "",
        (line.value or 0.0) * (-1 if line.higher_is_better else 1),
    ),
}


def _matches(line: RunLine, selection: Selection, notes: str) -> bool:
    return (
        (not selection.status or line.status in selection.status)
        and set(selection.tags) <= set(line.tags)
        and any(selection.text.lower() in text.lower() for text in (line.run_id, line.name or "", notes))
    )


def _check_recipe_keys(summaries: Sequence[RunSummary], where: Mapping[str, Any]) -> None:
    known = {key for summary in summaries for key in _leaves(summary)} if where else set()
    for key in where:
        if known and not any(leaf == key or leaf.startswith(f"{key}.") for leaf in known):
            # Here, for every method's keys are read, and a list of runs seldom asks.
            from assay.training.recipe import Recipe

            close_key = closest_key(Recipe, key.split("."))
            close = [close_key] if close_key in known else difflib.get_close_matches(key, known, n=3)
            hint = f" Perhaps you meant {' or '.join(close)}." if close else ""
            raise ConfigError(f"--where {key}: no run's recipe has that key.{hint}")


def _leaves(summary: RunSummary) -> dict[str, Any]:
    return dict(dotted_leaves(summary.run.recipe))


def _has_values(summary: RunSummary, where: Mapping[str, Any]) -> bool:
    leaves = _leaves(summary) if where else {}
    if groups := [key for key in where if any(leaf.startswith(f"{key}.") for leaf in leaves)]:
        raise ConfigError(f"{groups[0]} is a group of keys. Name one key and its value.")
    return all(key in leaves and leaves[key] == value for key, value in where.items())
