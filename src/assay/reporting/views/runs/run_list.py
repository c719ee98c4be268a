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
from assay.records.run import Attempt, ImportedFrom, Run, RunNotes, RunStatus
from assay.reporting.values import STATUS_WORDS
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
    """Set for a run of another tool."""

    def copied_from(self) -> ImportedFrom | None:
        """Return the tracker that a run was copied from; None for a run of ours, or one that recorded itself."""
        return None if self.imported is None or self.imported.is_recorded() else self.imported

    def is_session(self) -> bool:
        """Return whether it is a session of the Tinker API."""
        return self.imported is not None and self.imported.tool == "tinker"

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
    trained_by: str = ""
    """Method that trained it, or the other tool: `tinker` is a session of the Tinker API."""
    loss: float | None = None
    """The last one of rank 0, committed or not."""
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
    """Any of these, as recorded or as shown; all if empty."""
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
    return lines_of(ledger, selected_runs(ledger, selection, summaries))


def selected_runs(
    ledger: Ledger, selection: Selection, summaries: Sequence[RunSummary] | None = None
) -> list[RunSummary]:
    """Return the selected runs in order, without what `lines_of` reads of each one."""
    read = current_summaries(ledger) if summaries is None else summaries
    listed = [summary for summary in read if selection.drills or not summary.run.is_drill]
    for key in selection.where if listed else ():
        _check_recipe_key(listed, key)
    annotations = _annotations(ledger)
    chosen = [summary for summary in listed if _matches(summary, selection, annotations.get(summary.run.run_id))]
    return sorted(chosen, key=_ORDER[selection.sort])[: selection.limit]


def lines_of(ledger: Ledger, summaries: Sequence[RunSummary]) -> list[RunLine]:
    """Return the rows of these runs. Looks at their folders, to find what the ledger lacks."""
    annotations, writes = _annotations(ledger), ledger.last_writes()
    lines = []
    for summary in summaries:
        run, annotation = summary.run, annotations.get(summary.run.run_id)
        written_s, written_by = writes.get(run.run_id, NEVER_WRITTEN)
        line = RunLine.of(
            summary,
            run_id=run.run_id,
            name=run.recipe.get("name"),
            failure_kind=failure_kind(summary.status, summary.attempts),
            created=run.created_s,
            world_sizes=tuple(attempt.world_size for attempt in summary.attempts),
            last_seen=summary.last_seen_s,
            tags=annotation.tags if annotation else (),
            written=written_s,
            written_by=written_by,
            is_stale=run.imported is None
            and written_s is not None
            and is_stale(Path(run.run_dir), summary.status, written_s),
            imported=run.imported,
            attempts=len(summary.attempts),
            trained_by=run.trained_by(),
            auc=summary.value if summary.metric == AUC.title else None,
            device_hours=summary.device_s / 3600,
            evaluation_hours=summary.evaluation_s / 3600,
            started=summary.launch.where() if summary.launch else None,
            forked_from=str(run.parent) if run.parent else None,
            note=annotation.notes[-1].text if annotation and annotation.notes else None,
        )
        lines.append(line)
    return lines


def _annotations(ledger: Ledger) -> dict[str, RunNotes]:
    return {annotation.run_id: annotation for annotation in ledger.run_notes()}


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


_ORDER: dict[str, Callable[[RunSummary], Any]] = {
    "age": lambda summary: -summary.run.created_s,
    "cost": lambda summary: -summary.device_s,
    "name": lambda summary: summary.run.run_id,
    "seen": lambda summary: -(summary.last_seen_s or 0.0),
    "status": lambda summary: (summary.status, -summary.run.created_s),
    "step": lambda summary: -summary.step,
    # Metrics of other names have other scales; those without a value come last.
    "value": lambda summary: (
        summary.value is None,
        summary.metric or "",
        (summary.value or 0.0) * (-1 if summary.higher_is_better else 1),
    ),
}


def _matches(summary: RunSummary, selection: Selection, annotation: RunNotes | None) -> bool:
    run, tags, notes = summary.run, annotation.tags if annotation else (), annotation.notes if annotation else ()
    texts = (run.run_id, run.recipe.get("name") or "", " ".join(note.text for note in notes))
    return (
        (not selection.status or bool({summary.status, STATUS_WORDS.get(summary.status)} & {*selection.status}))
        and set(selection.tags) <= set(tags)
        and any(selection.text.lower() in text.lower() for text in texts)
        and all(_value_at(run.recipe, key) == value for key, value in selection.where.items())
    )


_NO_VALUE = object()


def _value_at(tree: Mapping[str, Any], dotted_key: str) -> Any:
    """Return a value of a nested mapping; `_NO_VALUE` if it lacks the key. Names of keys may contain dots."""
    if dotted_key in tree:
        return tree[dotted_key]
    groups = [name for name, value in tree.items() if isinstance(value, Mapping) and dotted_key.startswith(f"{name}.")]
    found = (_value_at(tree[name], dotted_key[len(name) + 1 :]) for name in groups)
    return next((value for value in found if value is not _NO_VALUE), _NO_VALUE)


def _check_recipe_key(summaries: Sequence[RunSummary], key: str) -> None:
    """Raise `ConfigError` if no recipe has a value with this key."""
    values = [_value_at(summary.run.recipe, key) for summary in summaries]
    if any(isinstance(value, Mapping) for value in values):
        raise ConfigError(f"{key} is a group of keys. Name one key and its value.")
    if any(value is not _NO_VALUE for value in values):
        return
    # Here, for every method's keys are read, and a list of runs seldom asks.
    from assay.training.recipe import Recipe

    known = {leaf for summary in summaries for leaf, _ in dotted_leaves(summary.run.recipe)}
    close_key = closest_key(Recipe, key.split("."))
    close = [close_key] if close_key in known else difflib.get_close_matches(key, known, n=3)
    hint = f" Perhaps you meant {' or '.join(close)}." if close else ""
    raise ConfigError(f"--where {key}: no run's recipe has that key.{hint}")
