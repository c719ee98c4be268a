"""The sinks that a home's settings name, each in a process beside a run that trains here.

One that fails is heard of in its log, and by nobody else: what it missed is handed over by `assay sink RUN`
later.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from assay.elastic.detached import start_detached
from assay.records.run import Attempt, Run
from assay.store.home import Home

LOG_FILE = "sinks.log"


class BackgroundSinks:
    """A watcher that starts them once, with the first attempt."""

    def __init__(self, home: Home, run: Run) -> None:
        self._home = home
        self._run = run
        self._waiting = list(home.settings().sinks)

    def attempt_began(self, attempt: Attempt, pids: Sequence[int]) -> None:  # noqa: ARG002
        """See that they were started; they outlive this process by a moment, to hand over the end."""
        while self._waiting:
            name = self._waiting.pop()
            command = [sys.executable, "-m", "assay", "sink", self._run.run_id, name]
            start_detached(command, self._home.environment(), log=Path(self._run.run_dir) / LOG_FILE)

    def tick(self, attempt: Attempt) -> None:
        """Nothing: they look after themselves."""

    def attempt_ended(self, attempt: Attempt) -> None:
        """Nothing: another attempt may begin."""
