"""Runs the user's `on_event` command from settings.yaml when the state of a run changes.

The command runs in its own session with a time limit of 30 s, and nothing waits for it, so it cannot affect the
run. Its output goes to the run's `events.log`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from assay.elastic.detached import start_detached
from assay.records.run import Attempt, Run
from assay.store.home import Home

Event = Literal["finished", "failed", "stopped", "moved", "stalled"]

LOG_FILE = "events.log"
LIMIT_S = 30.0

_WITH_A_LIMIT = """
import os, signal, subprocess, sys
command = subprocess.Popen(sys.argv[1], shell=True, stdin=subprocess.DEVNULL, start_new_session=True)
try:
    command.wait(float(sys.argv[2]))
except subprocess.TimeoutExpired:
    os.killpg(command.pid, signal.SIGKILL)
    print(f"killed after {sys.argv[2]} s: {sys.argv[1]}", flush=True)
"""


class EventCommand:
    """A run observer that reports hangs; the end is reported by `notify`."""

    def __init__(self, home: Home, run: Run, *, limit_s: float = LIMIT_S) -> None:
        self._home = home
        self._run = run
        self._command = home.settings().on_event
        self._limit_s = limit_s

    def attempt_began(self, attempt: Attempt, pids: Sequence[int]) -> None:
        pass

    def tick(self, attempt: Attempt) -> None:
        pass

    def attempt_ended(self, attempt: Attempt) -> None:
        if attempt.failure is not None and attempt.failure.failure_kind == "hang":
            self.notify("stalled", step=attempt.end_step, text=attempt.reason)

    def notify(self, event: Event, *, step: int | None, text: str) -> None:
        if not self._command:
            return
        about = {
            "ASSAY_EVENT": event,
            "ASSAY_RUN": self._run.run_id,
            "ASSAY_STEP": "" if step is None else str(step),
            "ASSAY_TEXT": text.replace("\0", ""),
            "ASSAY_RUN_DIR": self._run.run_dir,
        }
        command = [sys.executable, "-c", _WITH_A_LIMIT, self._command, str(self._limit_s)]
        log = Path(self._run.run_dir) / LOG_FILE
        start_detached(command, {**self._home.environment(), **about}, log=log)
