"""A worker of the evaluation queue in a process beside training, for as long as a run lives on this machine.

It shares nothing with the ranks but the run's store, so it may die without their noticing; it is started again.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from assay.base.errors import StoreAwayError, TrainingError
from assay.records.run import Attempt, Run
from assay.store.home import Home
from assay.training.recipe import recipe_of

MAX_STARTS = 5
LOG_FILE = "evaluation.log"


class BackgroundEvaluator:
    """A watcher that keeps one worker alive while a run trains; idle where the recipe asks for nothing.

    A worker that keeps failing does not stop the training: it is heard of at the end.
    """

    def __init__(self, home: Home, run: Run) -> None:
        self._home = home
        self._run = run
        self._is_enabled = recipe_of(run).evaluation is not None
        self._worker: subprocess.Popen[bytes] | None = None
        self._num_starts = 0

    def attempt_began(self, attempt: Attempt, pids: Sequence[int]) -> None:  # noqa: ARG002
        """See that there is a worker."""
        self._ensure_worker()

    def tick(self, attempt: Attempt) -> None:  # noqa: ARG002
        """Likewise."""
        self._ensure_worker()

    def attempt_ended(self, attempt: Attempt) -> None:
        """The worker stays: another attempt may begin, or the queue still has to be emptied."""

    def finish(self) -> None:
        """Wait until everything that the recipe asks for is evaluated; `TrainingError` if it cannot be,
        `StoreAwayError` if not now."""
        while (worker := self._ensure_worker()) is not None:
            if (code := worker.wait()) == 0:
                return
            if code == StoreAwayError.exit_code:
                raise StoreAwayError(
                    f"the evaluation of run '{self._run.run_id}' waited in vain for its store. The weights are "
                    f"committed; {self._log} says what it waited for. The same command goes on from there."
                )
        if self._worker is not None:
            raise TrainingError(
                f"the evaluation of run '{self._run.run_id}' failed {MAX_STARTS} times, the last time with "
                f"exit code {self._worker.returncode}. The weights are committed; {self._log} says why. "
                f"'assay eval work {self._run.run_id}' tries again."
            )

    def stop(self) -> None:
        """End the worker; what it has scored stays, and the next one goes on from there."""
        if self._worker is not None:
            self._worker.terminate()
            self._worker.wait()

    @property
    def _log(self) -> Path:
        return Path(self._run.run_dir) / LOG_FILE

    def _ensure_worker(self) -> subprocess.Popen[bytes] | None:
        """The worker, started where there is none; None where that failed too often, or nothing is wanted."""
        code = None if self._worker is None else self._worker.poll()
        if self._worker is not None and code in (None, 0):
            return self._worker
        if code == StoreAwayError.exit_code:
            self._num_starts -= 1  # it was patient, and is not to blame
        if self._num_starts == MAX_STARTS or not self._is_enabled:
            return None
        self._num_starts += 1
        with self._log.open("ab") as out:
            self._worker = subprocess.Popen(
                [sys.executable, "-m", "assay", "eval", "work", self._run.run_id, "--follow"],
                stdin=subprocess.DEVNULL,
                process_group=0,  # a terminal's Ctrl-C is for who trains, and it ends this one
                stdout=out,
                stderr=out,
                env={**os.environ, **self._home.environment()},
            )
        return self._worker
