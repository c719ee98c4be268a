"""Starts a run on this machine in a process of its own, which outlives the terminal."""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from assay.launch.places.launcher import Launched, LaunchState, resume_command
from assay.records.run import Run
from assay.store.home import Home

LOG_FILE = "background.log"


class BackgroundLauncher:
    """This machine; nothing queues."""

    def __init__(self, home: Home, options: Sequence[str] = ()) -> None:
        """`options`: more of `assay train`, e.g. `--max-restarts 3`."""
        self._home = home
        self._options = tuple(options)
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, run: Run, *, world_size: int) -> Launched:
        """Start `assay train --resume`; its job is the process's number."""
        command = resume_command(run, world_size=world_size, options=self._options)
        log = Path(run.run_dir) / LOG_FILE
        with log.open("a") as output:
            process = subprocess.Popen(
                command,
                env={**os.environ, **self._home.environment()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._children[str(process.pid)] = process
        return Launched(run_id=run.run_id, job=str(process.pid), log=log)

    def state(self, launched: Launched) -> LaunchState:
        """Whether that process is still the run's."""
        child = self._children.get(launched.job)
        is_running = child.poll() is None if child else _is_process_of(launched)
        return "running" if is_running else "ended"

    def stop(self, launched: Launched) -> None:
        """SIGTERM: commit at the next step and leave."""
        if self.state(launched) == "running":
            os.kill(int(launched.job), signal.SIGTERM)


def _is_process_of(launched: Launched) -> bool:
    """Numbers of processes are used again; the run's name in the command line is not.

    That line is empty for a moment when a program starts, and for good in a zombie.
    """
    process = Path("/proc", launched.job)
    try:
        arguments = (process / "cmdline").read_bytes().split(b"\0")
        is_zombie = "State:\tZ" in (process / "status").read_text()
    except OSError:
        return False
    return launched.run_id.encode() in arguments or (arguments == [b""] and not is_zombie)
