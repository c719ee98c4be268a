"""The table of runs. Imports nothing large: `assay runs list` must answer at once."""

from collections.abc import Sequence

from assay.base.units import age_text
from assay.reporting.document import Cell, Column, Table, Tone, name, number
from assay.reporting.values import STATUS_WORDS, device_hours_text, minute_text, world_sizes_text
from assay.reporting.views.run_list import RunLine

TONES: dict[str, Tone] = {"gone": "bad", "failed": "bad", "unknown": "open", "preempted": "open", "running": "ended"}


def runs_table(lines: Sequence[RunLine], *, now_s: float) -> Table:
    """Return a row for each run, without columns that would be empty."""
    return Table.of(
        lines,
        (name("run"), lambda line: line.run_id),
        (name("status"), _status),
        (number("step"), lambda line: f"{line.step:,}/{line.total_steps:,}"),
        (name("ranks", drop_order=2), lambda line: world_sizes_text(line.world_sizes)),
        (number("attempts", drop_order=3), lambda line: str(line.attempts)),
        (number("measured"), _measured),
        (number("device time", drop_order=1), lambda line: device_hours_text(3600 * line.device_hours)),
        (
            number("evaluation", drop_order=6),
            lambda line: device_hours_text(3600 * line.evaluation_hours) if line.evaluation_hours else "",
        ),
        (number("begun (UTC)", drop_order=5), lambda line: minute_text(line.created)),
        (number("age"), lambda line: age_text(now_s - line.created)),
        (
            number("last sign", drop_order=4),
            lambda line: "" if line.last_seen is None else age_text(now_s - line.last_seen),
        ),
        (name("tags"), lambda line: " ".join(line.tags)),
        (name("where"), lambda line: (line.started or "") if line.status in ("running", "unknown") else ""),
        (Column("note", "line"), lambda line: " ".join((line.note or "").split())),
    ).without_empty_columns()


def _measured(line: RunLine) -> str:
    return "" if line.value is None else f"{line.metric or ''} {line.value:.4f}".strip()


def _status(line: RunLine) -> Cell:
    return Cell(STATUS_WORDS.get(line.status) or line.status_text(), TONES.get(line.status))
