"""One rank's process: take a task, train, report how it ended.

The supervisor imports this module, so what needs torch is imported when the process runs.
"""

import faulthandler
import os
import select
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

from assay.base.errors import AssayError
from assay.launch.ranks.task import TRACEBACK, RankReport, RankTask, StopFlag
from assay.triage.hang import stacks_path


def rank_main(task: RankTask, pipe: Connection) -> None:
    """Entry point of a rank's process; its exit code is 0 only if it finished or stopped cleanly."""
    os.environ.update(task.environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to handle
    stop = StopFlag()
    _write_stacks_when_asked(task)
    said_all = _die_with_supervisor(pipe)
    try:
        from assay.launch.ranks.wiring import train_rank

        outcome = train_rank(task, stop)
        pipe.send(RankReport(outcome))
        code = 0
    except BaseException as error:
        known = error if isinstance(error, AssayError) else None
        summary = f"{type(error).__name__}: {error}"
        if known is None:
            summary = f"{summary.splitlines()[0]}{TRACEBACK}{_keep_traceback(task)}"
        pipe.send(RankReport("failed", summary=summary, error=known))
        code = 1
    said_all.set()
    pipe.close()
    sys.stdout.flush()
    sys.stderr.flush()
    # Without Python's farewell: a peer's death can leave threads of the backend waiting for ever.
    os._exit(code)


def _keep_traceback(task: RankTask) -> Path:
    """In a file and not on the terminal: when one rank dies, all of its peers fail for want of it."""
    folder = Path(task.run.run_dir) / "errors"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"attempt-{task.attempt.attempt:04d}-rank-{task.rank:05d}.txt"
    path.write_text(traceback.format_exc())
    return path


def _die_with_supervisor(pipe: Connection) -> threading.Event:
    """End this process when nobody is left who reads the pipe, unless the returned event is set.

    A rank without a supervisor could commit until a successor begins, and would hold its device for ever.
    """
    said_all = threading.Event()
    poller = select.poll()
    poller.register(pipe.fileno(), 0)  # no event but the reader's end

    def watch() -> None:
        poller.poll()
        if not said_all.is_set():
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="supervisor-watch", daemon=True).start()
    return said_all


def _write_stacks_when_asked(task: RankTask) -> None:
    path = stacks_path(Path(task.run.run_dir), task.attempt.attempt, task.rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    faulthandler.register(signal.SIGUSR1, file=path.open("w"), all_threads=True)
