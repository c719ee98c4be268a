"""The stages of a pipeline on a terminal."""

from rich.text import Text

from assay.base.units import duration_text
from assay.reporting.terminal.terminal import name, number, print_list, status_text
from assay.reporting.views.pipeline import PipelineView, StageRun


def print_stages(view: PipelineView) -> None:
    """Print a row for each run."""
    print_list(
        view.runs,
        (name("run"), lambda line: line.run_id),
        (name("stage"), lambda line: line.stage),
        (name("status"), _status),
        (number("step"), _step),
        (name("started from"), _started_from),
        (number("device time"), lambda line: duration_text(3600 * line.device_hours) if line.status else ""),
        dispensable=("stage", "device time"),
    )


def _status(line: StageRun) -> str | Text:
    return "to come" if line.status is None else status_text(line.status)


def _step(line: StageRun) -> str:
    return "" if line.total_steps is None else f"{line.step:,}/{line.total_steps:,}"


def _started_from(line: StageRun) -> str:
    if line.started_from is None or line.started_from_digest is None:
        return ""
    return f"{line.started_from}, weights {line.started_from_digest[:12]}…"
