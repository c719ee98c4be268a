"""Progress of a run on stderr while it trains, and a summary at the end.

On a terminal this is a bar. Otherwise it is log lines: one for the first step, one per commit, and at least one
every `LINE_INTERVAL_S` seconds.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from assay.base.clock import Clock, SystemClock, utc_text
from assay.base.json_log import is_json_log
from assay.base.units import count_text, duration_text
from assay.base.visible import terminal_of, visible
from assay.elastic.supervisor import describe
from assay.records.phase import Phase
from assay.records.run import Attempt, Run
from assay.reporting.values import estimate_text
from assay.store.incidents import read_incidents
from assay.store.metrics.segment import Points, Position, SegmentData, read_segment, segment_path
from assay.workflows.export.export_warnings import recorded_numbers
from assay.workflows.train import RunResult

LINE_INTERVAL_S = 30.0


class Display(Protocol):
    """Shows the progress of a run."""

    def open(self) -> None:
        """Start to show."""
        ...

    def close(self) -> None:
        """Restore the screen."""
        ...

    def begin(self, attempt: Attempt) -> None:
        """Show that an attempt starts from its commit."""
        ...

    def show(self, found: SegmentData) -> None:
        """Show the new data of rank 0's segment, which may be empty."""
        ...

    def wait(self) -> None:
        """Called when some time has passed."""
        ...

    def show_message(self, text: str) -> None:
        """Show a sentence about the run."""
        ...


class ProgressObserver:
    """A run observer that shows rank 0's metrics, events, and how attempts end."""

    def __init__(self, run: Run, display: Display | None = None) -> None:
        """`display`: by default a bar or log lines, depending on stderr."""
        self._display = display or _display_of(run)
        self._run = run
        self._position = Position()
        self._num_events = len(read_incidents(Path(run.run_dir)))

    def __enter__(self) -> Self:
        self._display.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._display.close()

    def attempt_began(self, attempt: Attempt, pids: Sequence[int]) -> None:  # noqa: ARG002
        self._position = Position()
        self._display.begin(attempt)

    def tick(self, attempt: Attempt) -> None:
        events = read_incidents(Path(self._run.run_dir))
        for event in events[self._num_events :]:
            self._display.show_message(f"{event.incident}: {event.text}")
        self._num_events = len(events)
        path = segment_path(Path(self._run.run_dir), attempt.attempt, 0)
        if path.exists():
            found = read_segment(path, self._position)
            self._position = found.next
            self._display.show(found)
        self._display.wait()

    def attempt_ended(self, attempt: Attempt) -> None:
        self.tick(attempt)
        self._display.show_message(describe(attempt))


def _display_of(run: Run) -> Display:
    console, num_steps = Console(file=terminal_of(sys.stderr)), run.num_steps
    return Bar(console, run.run_id, num_steps) if console.is_terminal else LogLines(num_steps)


class Bar:
    """A progress bar on a terminal."""

    def __init__(self, console: Console, run_id: str, num_steps: int) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task(run_id, total=num_steps, speed="starting")

    def open(self) -> None:
        self._progress.start()

    def close(self) -> None:
        self._progress.stop()

    def begin(self, attempt: Attempt) -> None:
        self._progress.update(self._task, completed=attempt.start_step, speed="starting")

    def show(self, found: SegmentData) -> None:
        if "loss" in found.metrics:
            step = int(found.metrics["loss"].steps[-1])
            self._progress.update(self._task, completed=step, speed=_speed(found.metrics))

    def wait(self) -> None:
        pass  # the bar updates by itself

    def show_message(self, text: str) -> None:
        self._console.print(visible(text), highlight=False, markup=False)


class LogLines:
    """Log lines for a file or a pipe."""

    def __init__(
        self, num_steps: int, *, clock: Clock | None = None, write: Callable[[str], None] | None = None
    ) -> None:
        self._num_steps = num_steps
        self._clock = clock or SystemClock()
        self._write = write or (lambda line: click.echo(line, err=True))
        self._last_line_s = self._phase_s = self._clock.monotonic_s()
        self._phase: Phase = "startup"
        self._start: tuple[int, float] | None = None
        """Step and time (on the rank's clock) at which the attempt's first step started; None before it."""
        self._step = self._committed_step = 0
        self._tokens = self._seconds = 0.0
        """Tokens and seconds of the steps since the last line."""
        self._loss = self._rate = self._left_s = 0.0

    def open(self) -> None:
        """Nothing is written before an attempt begins."""

    def close(self) -> None:
        """What was written stays."""

    def begin(self, attempt: Attempt) -> None:
        self._start, self._step, self._committed_step = None, attempt.start_step, attempt.start_step
        self._phase, self._phase_s = "startup", self._clock.monotonic_s()
        of = f"{attempt.world_size} worker{'s' if attempt.world_size > 1 else ''}"
        if len(set(attempt.loads)) > 1:
            of += f" with {', '.join(map(str, attempt.loads))} lanes"
        at = f"at step {attempt.start_step:,} of {self._num_steps:,}"
        self.show_message(f"run {attempt.run_id}: attempt {attempt.attempt} begins on {of} {at}")

    def show(self, found: SegmentData) -> None:
        for event in found.events:
            self.show_message(f"rank 0: {event.text}")
        loss = found.metrics.get("loss")
        history: list[tuple[float, int | Phase]] = []
        history += [] if loss is None else zip(loss.at_s.tolist(), range(len(loss.at_s)), strict=True)
        history += zip(found.phase_changes.at_s.tolist(), found.phase_changes.phases, strict=True)
        for time_s, what in sorted(history, key=lambda event: event[0]):
            if isinstance(what, int):
                self._record_step(found.metrics, what, time_s)
                continue
            self._phase, self._phase_s = what, time_s
            if what == "checkpoint" and self._step > self._committed_step:
                self._committed_step = self._step
                self._line(", committing")

    def wait(self) -> None:
        if self._clock.monotonic_s() - self._last_line_s >= LINE_INTERVAL_S:
            self._line()

    def show_message(self, text: str) -> None:
        self._last_line_s = self._clock.monotonic_s()
        # A JSON object has its own time.
        self._write(text if is_json_log() else f"{utc_text(self._clock.now_s())}  {text}")

    def _record_step(self, metrics: dict[str, Points], index: int, time_s: float) -> None:
        self._step = int(metrics["loss"].steps[index])
        self._loss, self._rate, tokens, seconds = (
            float(metrics[name].values[index]) for name in ("loss", "learning_rate", "tokens", "step_s")
        )
        self._tokens, self._seconds = self._tokens + tokens, self._seconds + seconds
        is_first = self._start is None
        start_step, start_s = self._start = self._start or (self._step - 1, time_s - seconds)
        self._left_s = (self._num_steps - self._step) * (time_s - start_s) / (self._step - start_step)
        if is_first:
            self._line()

    def _line(self, ending: str = "") -> None:
        where = f"step {self._step:,}/{self._num_steps:,}"
        if self._seconds:
            speed, left = f"{count_text(self._tokens / self._seconds)} tokens/s", duration_text(self._left_s)
            where += f", loss {self._loss:.4f}, learning rate {self._rate:.2e}, {speed}, {left} left"
            self._tokens = self._seconds = 0.0
        elif not ending:
            where += f", in {self._phase} for {duration_text(self._clock.monotonic_s() - self._phase_s)}"
        self.show_message(where + ending)


def _speed(metrics: dict[str, Points]) -> str:
    seconds = float(metrics["step_s"].values.sum())
    tokens = float(metrics["tokens"].values.sum())
    return f"{count_text(tokens / max(seconds, 1e-9))} tokens/s, loss {metrics['loss'].values[-1]:.4f}"


def print_result(result: RunResult) -> None:
    """Print the outcome of a run."""
    run_id = result.run.run_id
    last = result.last_attempt
    if result.outcome == "stopped" and last is None:
        click.echo(f"run {run_id} stopped before it began; it {result.waits_for or 'was asked to stop'}")
        return
    if result.outcome == "stopped":
        assert last is not None
        why = f"; it {result.waits_for}" if result.waits_for else ""
        click.echo(f"run {run_id} stopped at step {last.end_step}, committed{why}. Resume it with:")
        click.echo(f"  {last.resume_command()}")
        return
    evaluation, audit = result.evaluation, result.audit
    if evaluation is not None:
        headline = evaluation.headline
        click.echo(f"{f'validation {headline.metric.title}':<15} {estimate_text(headline.estimate)}")
    if audit is not None:
        rows_text = f"{audit.rows_trained:,} of {audit.rows_expected:,} rows learned once"
        click.echo(f"audit           {audit.verdict}: {rows_text}")
    from assay.reporting.views.warnings import warning_text  # here, for progress must start fast

    for warning in recorded_numbers(result.run, evaluation).warnings():
        click.secho(f"warning         {warning.rule}: {warning_text(warning)}", fg="yellow")
    if evaluation is not None:
        click.echo(f"weights         {evaluation.weights_digest[:16]}… at step {evaluation.step}")
    click.echo(f"next: assay runs show {run_id} · assay report {run_id} · assay runs audit {run_id}")
