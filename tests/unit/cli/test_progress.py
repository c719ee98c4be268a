"""What a log file says of a run while it trains."""

from pathlib import Path

import pytest

from assay.cli.progress import LINE_INTERVAL_S, LogLines, ProgressObserver
from assay.records.run import Attempt, Run
from assay.store.metrics.segment import SegmentWriter, segment_path
from clocks import ManualClock
from machine import MACHINE


class Training:
    """Rank 0 of a first attempt on a clock that is moved by hand, and the lines about it."""

    def __init__(self, run: Run) -> None:
        self.clock = ManualClock()
        self.lines: list[str] = []
        self.attempt = Attempt(run_id="r", attempt=1, world_size=2, start_step=10, started_s=0.0, **MACHINE)
        self.progress = ProgressObserver(run, LogLines(40, clock=self.clock, write=self.lines.append))
        self.progress.attempt_began(self.attempt, ())
        path = segment_path(Path(run.run_dir), 1, 0)
        self._writer = SegmentWriter(path, run_id="r", attempt=1, rank=0, clock=self.clock)

    def step(self, step: int, seconds: float = 1.0) -> None:
        self._writer.phase("compute")
        self.clock.sleep_s(seconds)
        values = {"loss": 10.0 / step, "learning_rate": 1e-4, "tokens": 500.0 * seconds, "step_s": seconds}
        self._writer.log(step, values)

    def enter(self, phase) -> None:
        self._writer.phase(phase)

    def output(self) -> list[str]:
        """Since the last time, without the moment."""
        self.progress.tick(self.attempt)
        output, self.lines[:] = [line.partition("  ")[2] for line in self.lines], []
        return output


@pytest.fixture
def training(run: Run) -> Training:
    Path(run.run_dir).mkdir()
    return Training(run)


def test_a_log_has_a_line_for_the_first_step_and_for_every_commit(training: Training) -> None:
    assert training.output() == ["run r: attempt 1 begins on 2 workers at step 10 of 40"]
    training.step(11)
    assert training.output() == ["step 11/40, loss 0.9091, learning rate 1.00e-04, 500 tokens/s, 29 s left"]
    for step in (12, 13, 14):
        training.step(step)
    assert training.output() == []
    for step in (15, 16, 20):
        training.step(step)
        if step != 16:
            training.enter("checkpoint")
    assert [line.split(",")[0] for line in training.output()] == ["step 15/40", "step 20/40"]
    training.enter("evaluation")
    training.enter("checkpoint")  # of the same step
    assert training.output() == []


def test_a_line_of_a_log_begins_with_its_moment_and_large_numbers_are_grouped(run: Run) -> None:
    Path(run.run_dir).mkdir()
    training = Training(run)
    display = LogLines(12_000, clock=training.clock, write=training.lines.append)
    display.begin(training.attempt.model_copy(update={"start_step": 0, "attempt": 2, "loads": (5, 3)}))
    assert training.lines[-1].endswith("attempt 2 begins on 2 workers with 5, 3 lanes at step 0 of 12,000")
    display.begin(training.attempt.model_copy(update={"start_step": 1_499, "attempt": 2, "loads": (4, 4)}))
    training.progress = ProgressObserver(run, display)
    training.step(1_500, seconds=2.0)
    training.progress.tick(training.attempt)
    assert training.lines[-2:] == [
        "1970-01-01T00:00:00Z  run r: attempt 2 begins on 2 workers at step 1,499 of 12,000",
        "1970-01-01T00:00:02Z  step 1,500/12,000, loss 0.0067, learning rate 1.00e-04, 500 tokens/s, 5 h 50 min left",
    ]


def test_a_commit_that_is_seen_before_its_step_was_is_of_that_step(training: Training) -> None:
    training.step(11)
    training.output()
    training.enter("checkpoint")
    assert training.output() == ["step 11/40, committing"]
    training.step(12)
    training.enter("checkpoint")
    (line,) = training.output()
    assert line.endswith("28 s left, committing")


def test_a_log_is_never_silent_for_longer_than_it_says(training: Training) -> None:
    training.output()
    training.clock.sleep_s(LINE_INTERVAL_S)
    assert training.output() == ["step 10/40, in startup for 30 s"]
    training.step(11)
    training.output()
    for step in range(12, 40):
        training.step(step, 9.0)
    lines = [line for line in training.output() if "tokens/s" in line]
    assert len(lines) == 1  # one look, one line
    training.enter("evaluation")
    training.clock.sleep_s(LINE_INTERVAL_S + 5)
    assert training.output() == ["step 39/40, in evaluation for 35 s"]


def test_the_end_of_an_attempt_shows_its_last_step(training: Training) -> None:
    training.output()
    training.step(11)
    ended = {"ended_s": training.clock.now_s(), "end_step": 11, "outcome": "killed", "reason": "it was killed"}
    training.progress.attempt_ended(training.attempt.model_copy(update=ended))
    first, last = training.lines
    assert "step 11/40" in first
    assert "it was killed" in last
