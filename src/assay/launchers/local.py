"""Starts a run on this machine in a background process that outlives the terminal.

The process waits for a line on stdin before it becomes `assay train`, and gets it once the launch is recorded. So if
the launcher is killed at any point, no run is left that has no record.
"""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from assay.base.errors import ConfigError
from assay.launchers.launcher import LaunchState, resume_command, starting
from assay.records.launch import Launch
from assay.records.run import Run
from assay.store.home import Home
from assay.store.launches import process_key, process_state, save_launch, saved_launches

LOG_FILE = "background.log"

_WAIT_FOR_GO = """\
log=$1; shift; exec 3<&0
(read -r word <&3 && exec "$@" </dev/null 3<&-) >>"$log" 2>&1 & echo $!
"""


class BackgroundLauncher:
    """Starts runs on this machine at once, without a queue."""

    def __init__(self, home: Home, options: Sequence[str] = ()) -> None:
        """`options`: further options of `assay train`, e.g. `--max-restarts 3`."""
        self._home = home
        self._options = tuple(options)

    def start(self, run: Run, *, world_size: int) -> Launch:
        """Start `assay train --resume`; the launch's `job` is the process id."""
        command = resume_command(run, world_size=world_size, options=("--launched", *self._options))
        log = str(Path(run.run_dir) / LOG_FILE)
        with (
            _starting(run, self._options),
            subprocess.Popen(
                ["/bin/sh", "-c", _WAIT_FOR_GO, "sh", log, *command],
                env={**os.environ, **self._home.environment()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            ) as shell,
        ):
            assert shell.stdin is not None and shell.stdout is not None
            job = int(shell.stdout.readline())
            launch = save_launch(
                run, launcher="background", job=str(job), world_size=world_size, log=log, process=process_key(job)
            )
            shell.stdin.write(b"go\n")
        return launch


@contextmanager
def _starting(run: Run, options: Sequence[str]) -> Iterator[None]:
    """Hold the run's lock; raise `ConfigError` if a process trains the run, unless `--take-over` is an option."""
    with starting(run):
        last = next(reversed(saved_launches(run)), None)
        if last is not None and process_state(last) == "running" and "--take-over" not in options:
            raise ConfigError(last.conflict_text())
        yield


def launched_here(
    run: Run, *, world_size: int, requested_s: float | None = None, options: Sequence[str] = ()
) -> Launch:
    """Record that this process starts or resumes a run; `requested_s`: see `Launch`; `options`: of the command."""
    job = str(os.getpid())
    key = process_key(os.getpid())
    with _starting(run, options):
        return save_launch(run, launcher="here", job=job, world_size=world_size, process=key, requested_s=requested_s)


def state(launch: Launch) -> LaunchState:
    """Return whether the process runs; `elsewhere` on another host."""
    return process_state(launch)


def stop(launch: Launch) -> None:
    """Send SIGTERM: the run commits at the next step and exits. Raises `ConfigError` on another host."""
    _signal(launch, signal.SIGTERM)


def kill(launch: Launch) -> None:
    """Send SIGKILL; the ranks notice and kill themselves. Raises `ConfigError` on another host."""
    _signal(launch, signal.SIGKILL)


def _signal(launch: Launch, number: signal.Signals) -> None:
    found = process_state(launch)
    if found == "elsewhere":
        raise ConfigError(
            f"run '{launch.run_id}' was started on {launch.host} as process {launch.job}, which cannot be signalled "
            f"from {socket.gethostname()}. Stop it on {launch.host}: 'assay train stop {launch.run_id}'."
        )
    if found == "running":
        os.kill(int(launch.job), number)
