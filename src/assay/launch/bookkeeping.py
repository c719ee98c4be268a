"""What the supervisor sees, written to the ledger: attempts, log entries, metrics, device time.

The ranks write files only. Should the database be away for a while, training does not notice: the facts are in
the run's folder, and the next tick (or `assay show`) brings the ledger up to date.
"""

from collections.abc import Sequence
from pathlib import Path

from assay.base.clock import Clock
from assay.records.run import Attempt, PhaseSeconds, Run
from assay.store.commit_log import CommitLog
from assay.store.ledger.ledger import Ledger
from assay.store.metrics.fold import fold_run
from assay.store.metrics.phases import device_seconds
from assay.store.metrics.segment import read_segment, segment_path
from assay.store.objects import open_store

FOLD_EVERY_S = 2.0


class Bookkeeper:
    """A watcher that keeps the ledger up to date."""

    def __init__(self, run: Run, ledger: Ledger, clock: Clock) -> None:
        self._run = run
        self._ledger = ledger
        self._clock = clock
        self._log = CommitLog(open_store(run.store_url))
        self._num_entries = 0
        self._next_fold_s = 0.0

    def attempt_began(self, attempt: Attempt, pids: Sequence[int]) -> None:  # noqa: ARG002
        """A new life of the run."""
        self._ledger.record_attempt(attempt)

    def tick(self, attempt: Attempt) -> None:  # noqa: ARG002
        """Bring metrics and commits up to date, now and then."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._next_fold_s:
            self._next_fold_s = now_s + FOLD_EVERY_S
            self._catch_up()

    def attempt_ended(self, attempt: Attempt) -> None:
        """Write down how it ended, and where its device time went."""
        self._ledger.record_attempt(attempt)
        self._catch_up()
        for rank in range(attempt.world_size):
            self._ledger.record_phase_seconds(_phases_of(self._run, attempt, rank))

    def _catch_up(self) -> None:
        entries = self._log.entries()
        new = {index: entries[index] for index in range(self._num_entries, len(entries))}
        self._ledger.record_log_entries(self._run.run_id, new)
        self._num_entries = len(entries)
        fold_run(self._ledger, self._run)


def _phases_of(run: Run, attempt: Attempt, rank: int) -> PhaseSeconds:
    path = segment_path(Path(run.run_dir), attempt.attempt, rank)
    assert attempt.ended_s is not None
    segment = read_segment(path) if path.exists() else None
    seconds = device_seconds(
        segment,
        held_from_s=attempt.started_s,
        held_to_s=attempt.ended_s,
        committed_step=attempt.end_step or attempt.start_step,
    )
    return PhaseSeconds(
        run_id=run.run_id,
        attempt=attempt.attempt,
        rank=rank,
        held_s=attempt.ended_s - attempt.started_s,
        seconds=seconds,
    )
