"""One rank's process: take a task, train, report how it ended.

The supervisor imports this module, so what needs torch is imported when the process runs.
"""

import faulthandler
import os
import select
import signal
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

from assay.base.errors import known_error
from assay.base.visible import visible_output
from assay.elastic.failures import failure_of
from assay.elastic.task import RankBegan, RankReport, RankTask, StopFlag
from assay.records.rank_device import RankDevice
from assay.triage.hang import ALL_STACKS_SIGNAL, FLIGHT_SIGNAL, MAIN_STACK_SIGNAL, flight_path, stacks_path

NUDGE_S = 1.0
"""How often a thread of each rank runs Python, where glibc has lost a wake-up: see `_die_with_supervisor`."""
REMEMBERED = 256
"""Collectives that the flight recorder keeps."""


@visible_output()
def rank_main(task: RankTask, pipe: Connection) -> None:
    """Entry point of a rank's process; its exit code is 0 only if it finished or stopped cleanly."""
    os.environ.update(task.environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to handle
    signal.pthread_sigmask(signal.SIG_BLOCK, {FLIGHT_SIGNAL})  # in every thread that is to come
    stop = StopFlag()
    all_reported = _die_with_supervisor(pipe)
    devices = [RankDevice()]

    def began(device: RankDevice) -> None:
        devices.append(device)
        pipe.send(RankBegan(device))

    try:
        _write_stacks_on_signal(task)
        _dump_flight_on_signal(task)
        from assay.elastic.rank_setup import train_rank

        outcome = train_rank(task, stop, began)
        pipe.send(RankReport(outcome))
        code = 0
    except BaseException as error:
        known = known_error(error)
        pipe.send(RankReport("failed", failure_of(known or error, task, device=devices[-1].name), known))
        code = 1
    all_reported.set()
    pipe.close()
    sys.stdout.flush()
    sys.stderr.flush()
    # Without Python's farewell: a peer's death can leave threads of the backend waiting for ever.
    os._exit(code)


def _die_with_supervisor(pipe: Connection) -> threading.Event:
    """End this process when nobody is left who reads the pipe, unless the returned event is set.

    A rank without a supervisor could commit until a successor begins, and would hold its device for ever.

    The thread that looks also takes the interpreter's lock now and then. Who gives that up when asked to waits
    until another thread has taken it; before glibc 2.41 that word can be lost (its bug 25847), and a rank whose
    other threads are idle stands still in a step until one takes it.
    """
    all_reported = threading.Event()
    poller = select.poll()
    poller.register(pipe.fileno(), 0)  # no event but the reader's end

    def watch() -> None:
        while not poller.poll(1000 * NUDGE_S):
            pass
        if not all_reported.is_set():
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="supervisor-watch", daemon=True).start()
    return all_reported


def _write_stacks_on_signal(task: RankTask) -> None:
    path = stacks_path(Path(task.run.run_dir), task.orders.attempt.attempt, task.rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("w")
    faulthandler.register(MAIN_STACK_SIGNAL, file, all_threads=False)
    faulthandler.register(ALL_STACKS_SIGNAL, file, all_threads=True)


def _dump_flight_on_signal(task: RankTask) -> None:
    """Which collectives this rank entered, as torch's flight recorder keeps them (of gloo, too).

    A thread waits for the signal, since the main one may stand in a collective for ever."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(REMEMBERED))
    path = flight_path(Path(task.run.run_dir), task.orders.attempt.attempt, task.rank)

    def dump() -> None:
        signal.sigwait({FLIGHT_SIGNAL})
        from assay.distributed.flight_dump import flight_dump

        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_bytes(flight_dump(task.rank))
        unfinished.replace(path)

    threading.Thread(target=dump, name="flight-recorder", daemon=True).start()
