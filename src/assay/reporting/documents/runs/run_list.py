"""Tables of runs and of a pipeline's stages. Imports nothing large: `assay runs list` must answer at once."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from assay.base.units import age_text, duration_text
from assay.reporting.document import Cell, Column, Table, Text, Tone, name, number
from assay.reporting.values import STATUS_WORDS, device_hours_text, minute_text, world_sizes_text
from assay.reporting.views.runs.run_list import ImportLine, RunLine

if TYPE_CHECKING:
    from assay.reporting.views.pipeline import PipelineView, StageRun

TONES: dict[str, Tone] = {"gone": "bad", "failed": "bad", "unknown": "open", "preempted": "open", "running": "ended"}


RUN_COLUMNS = (
    "status", "kind", "step", "ranks", "attempts", "measured", "device time", "evaluation", "started (UTC)", "age",
    "last sign", "tags", "where", "note",
)  # fmt: skip
"""Columns of a list of runs, behind the runs' ids."""


def runs_table(
    lines: Sequence[RunLine],
    *,
    now_s: float,
    address: Callable[[RunLine], str] = lambda line: "",
    columns: Sequence[str] = (),
    others: Mapping[str, Callable[[RunLine], Text]] = {},
) -> Table:
    """Return a row for each run, with the chosen columns, or without those that would be empty. `address`: of a run's
    page. `others`: columns behind these, by heading."""
    table = Table.of(
        lines,
        (name("run"), lambda line: Cell(line.run_id, link=address(line))),
        (name("status"), _status),
        (name("kind", drop_order=7), _kind),
        (number("step"), lambda line: f"{line.step:,}/{line.total_steps:,}"),
        (name("ranks", drop_order=2), lambda line: world_sizes_text(line.world_sizes)),
        (number("attempts", drop_order=3), lambda line: str(line.attempts)),
        (number("measured"), _measured),
        (number("device time", drop_order=1), lambda line: device_hours_text(3600 * line.device_hours)),
        (
            number("evaluation", drop_order=6),
            lambda line: device_hours_text(3600 * line.evaluation_hours) if line.evaluation_hours else "",
        ),
        (number("started (UTC)", drop_order=5), lambda line: minute_text(line.created)),
        (number("age"), lambda line: age_text(now_s - line.created)),
        (
            number("last sign", drop_order=4),
            lambda line: "" if line.last_seen is None else age_text(now_s - line.last_seen),
        ),
        (name("tags"), lambda line: " ".join(line.tags)),
        (name("where"), lambda line: (line.started or "") if line.status in ("running", "unknown") else ""),
        (Column("note", "line"), lambda line: " ".join((line.note or "").split())),
        *((heading, cell) for heading, cell in others.items()),
    )
    return table.of_columns(["run", *columns, *others]) if columns else table.without_empty_columns()


def imports_table(lines: Sequence[ImportLine]) -> Table:
    """Return a row for each imported run."""
    return Table.of(
        lines,
        (name("run"), lambda line: line.run_id),
        (name("imported from"), lambda line: line.tool),
        (name("named", drop_order=1), lambda line: line.name),
        (name("status"), lambda line: STATUS_WORDS.get(line.status) or line.status),
        (number("points"), lambda line: f"{line.num_points:,}"),
        (number("new"), lambda line: f"{line.num_new:,}"),
    )


def _kind(line: RunLine) -> str:
    return f"{line.trained_by} {line.name}" if line.is_session() else line.trained_by


def _measured(line: RunLine) -> str:
    if line.value is None:
        return "" if line.loss is None else f"loss {line.loss:.4f}"
    return f"{line.metric or ''} {line.value:.4f}".strip()


def _status(line: RunLine) -> Cell:
    return Cell(STATUS_WORDS.get(line.status) or line.status_text(), TONES.get(line.status))


def stages_table(view: "PipelineView") -> Table:
    """Return a row for each run of a pipeline."""
    return Table.of(
        view.runs,
        (name("run"), lambda line: line.run_id),
        (name("stage", drop_order=2), lambda line: line.stage),
        (name("status"), _stage_status),
        (number("step"), lambda line: "" if line.total_steps is None else f"{line.step:,}/{line.total_steps:,}"),
        (name("started from"), _started_from),
        (
            number("device time", drop_order=1),
            lambda line: duration_text(3600 * line.device_hours) if line.status else "",
        ),
    )


def _stage_status(line: "StageRun") -> Text:
    return (
        "to come" if line.status is None else Cell(STATUS_WORDS.get(line.status, line.status), TONES.get(line.status))
    )


def _started_from(line: "StageRun") -> str:
    if line.started_from is None or line.started_from_digest is None:
        return ""
    return f"{line.started_from}, weights {line.started_from_digest[:12]}…"
