"""What the supervisor sees, written to the ledger: attempts, log entries, metrics, device time.

The ranks write files only. Should the database be away for a while, training does not notice: the facts are in
the run's folder, and the next tick (or `assay show`) brings the ledger up to date.
"""

from collections.abc import Sequence

from assay.base.clock import Clock
from assay.records.run import Attempt, Run
from assay.store.commit_log import CommitLog
from assay.store.ledger.ledger import Ledger
from assay.store.metrics.fold import fold_run
from assay.store.metrics.phases import rank_phase_seconds
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
        assert attempt.ended_s is not None and attempt.end_step is not None
        for rank in range(attempt.world_size):
            self._ledger.record_phase_seconds(
                rank_phase_seconds(
                    self._run,
                    attempt,
                    rank,
                    held_to_s=attempt.ended_s,
                    committed_step=attempt.end_step or attempt.start_step,
                )
            )

    def _catch_up(self) -> None:
        entries = self._log.entries()
        new = {index: entries[index] for index in range(self._num_entries, len(entries))}
        self._ledger.record_log_entries(self._run.run_id, new)
        self._num_entries = len(entries)
        fold_run(self._ledger, self._run)
