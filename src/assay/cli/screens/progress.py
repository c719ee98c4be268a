"""A run on the screen: a bar while it trains, a summary when it is done."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from assay.base.units import count_text
from assay.launch.drive import RunResult
from assay.launch.ranks.supervisor import describe
from assay.launch.run import planned_steps
from assay.records.run import Attempt, Run
from assay.reporting.views.verdict import estimate_text
from assay.store.metrics.segment import Points, Position, read_segment, segment_path
from assay.store.notices import read_notices


class ProgressBar:
    """A watcher that follows rank 0's metrics; on stderr, and silent where that is no terminal."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._num_steps = planned_steps(run)
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task(run.run_id, total=self._num_steps, speed="starting")
        self._position = Position()
        self._num_notices = len(read_notices(Path(run.run_dir)))

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def attempt_began(self, attempt: Attempt, pids: Sequence[int]) -> None:  # noqa: ARG002
        """Start from the attempt's commit."""
        self._position = Position()
        self._progress.update(self._task, completed=attempt.start_step, speed="starting")

    def tick(self, attempt: Attempt) -> None:
        """Show the newest step, and say what was noticed."""
        notices = read_notices(Path(self._run.run_dir))
        for notice in notices[self._num_notices :]:
            self._console.print(f"{notice.notice}: {notice.text}", highlight=False)
        self._num_notices = len(notices)
        path = segment_path(Path(self._run.run_dir), attempt.attempt, 0)
        if not path.exists():
            return
        found = read_segment(path, self._position)
        self._position = found.next
        if "loss" in found.metrics:
            step = int(found.metrics["loss"].steps[-1])
            self._progress.update(self._task, completed=step, speed=_speed(found.metrics))

    def attempt_ended(self, attempt: Attempt) -> None:
        """Say how it ended."""
        self._console.print(describe(attempt), highlight=False)


def _speed(metrics: dict[str, Points]) -> str:
    seconds = float(metrics["step_s"].values.sum())
    tokens = float(metrics["tokens"].values.sum())
    return f"{count_text(tokens / max(seconds, 1e-9))} tokens/s, loss {metrics['loss'].values[-1]:.4f}"


def print_result(result: RunResult) -> None:
    """What the run came to."""
    run_id = result.run.run_id
    if result.outcome == "stopped":
        step = result.last_attempt.end_step if result.last_attempt else None
        click.echo(f"run {run_id} stopped at step {step}, committed. Go on with:")
        click.echo(f"  assay train --resume {run_id}")
        return
    evaluation, audit = result.evaluation, result.audit
    if evaluation is not None:
        headline = evaluation.headline
        click.echo(f"{f'validation {headline.metric.title}':<16}{estimate_text(headline.estimate)}")
    if audit is not None:
        learned = f"{audit.rows_learned} of {audit.rows_expected} rows learned once"
        click.echo(f"audit           {audit.verdict}: {learned}")
    if evaluation is not None:
        click.echo(f"weights         {evaluation.weights_digest[:16]}… at step {evaluation.step}")
    click.echo(f"next: assay show {run_id} · assay report {run_id} · assay audit {run_id}")
