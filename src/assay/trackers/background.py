"""Starts the sinks of the home's settings, each in a background process next to a run on this machine.

A sink that fails only writes to its log. `assay runs sink RUN` sends the missing metrics later.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from assay.elastic.detached import start_detached
from assay.records.run import Attempt, Run
from assay.store.home import Home

LOG_FILE = "sinks.log"


class BackgroundSinks:
    """A `RunObserver` that starts the sinks once, with the first attempt."""

    def __init__(self, home: Home, run: Run) -> None:
        self._home = home
        self._run = run
        self._waiting = list(home.settings().sinks)

    def attempt_began(self, attempt: Attempt, pids: Sequence[int]) -> None:  # noqa: ARG002
        """Start the sinks. They outlive this process briefly to send the last metrics."""
        while self._waiting:
            name = self._waiting.pop()
            command = [sys.executable, "-m", "assay", "runs", "sink", self._run.run_id, name]
            start_detached(command, self._home.environment(), log=Path(self._run.run_dir) / LOG_FILE)

    def tick(self, attempt: Attempt) -> None:
        """Do nothing: sinks run on their own."""

    def attempt_ended(self, attempt: Attempt) -> None:
        """Do nothing: another attempt may begin."""
