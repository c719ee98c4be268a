"""Runs a worker of the evaluation queue in the background while a run trains on this machine.

It shares only the run's store with the ranks, so its death does not affect them; it is started again.
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
    """A run observer that keeps an evaluation worker alive; idle if the recipe has no evaluation.

    A failing worker does not stop the training; `finish` reports it at the end.
    """

    def __init__(self, home: Home, run: Run) -> None:
        self._home = home
        self._run = run
        self._is_enabled = recipe_of(run).evaluation is not None
        self._worker: subprocess.Popen[bytes] | None = None
        self._num_starts = 0

    def attempt_began(self, attempt: Attempt, pids: Sequence[int]) -> None:  # noqa: ARG002
        self._ensure_worker()

    def tick(self, attempt: Attempt) -> None:  # noqa: ARG002
        self._ensure_worker()

    def attempt_ended(self, attempt: Attempt) -> None:
        pass  # the worker stays for the next attempt, or for the rest of the queue

    def finish(self) -> None:
        """Wait until all due evaluations are done. Raises `TrainingError` if they fail, `StoreAwayError` if the
        store is down."""
        while (worker := self._ensure_worker()) is not None:
            if (code := worker.wait()) == 0:
                return
            if code == StoreAwayError.exit_code:
                raise StoreAwayError(
                    f"the evaluation of run '{self._run.run_id}' gave up waiting for its store. The weights are "
                    f"committed; {self._log} has the reason. The same command continues."
                )
        if self._worker is not None:
            raise TrainingError(
                f"the evaluation of run '{self._run.run_id}' failed {MAX_STARTS} times, the last time with "
                f"exit code {self._worker.returncode}. The weights are committed; {self._log} has the reason. "
                f"'assay eval work {self._run.run_id}' repeats it."
            )

    def stop(self) -> None:
        """Stop the worker; its scores stay, and the next worker continues."""
        if self._worker is not None:
            self._worker.terminate()
            self._worker.wait()

    @property
    def _log(self) -> Path:
        return Path(self._run.run_dir) / LOG_FILE

    def _ensure_worker(self) -> subprocess.Popen[bytes] | None:
        """Return the worker, started if needed; None if it failed too often or evaluation is off."""
        code = None if self._worker is None else self._worker.poll()
        if self._worker is not None and code in (None, 0):
            return self._worker
        if code == StoreAwayError.exit_code:
            self._num_starts -= 1  # the store was down; this does not count as a failure
        if self._num_starts == MAX_STARTS or not self._is_enabled:
            return None
        self._num_starts += 1
        with self._log.open("ab") as out:
            self._worker = subprocess.Popen(
                [sys.executable, "-m", "assay", "eval", "work", self._run.run_id, "--follow"],
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C must reach only the trainer, which stops this process
                stdout=out,
                stderr=out,
                env={**os.environ, **self._home.environment()},
            )
        return self._worker
