"""The process of one rank: it trains its task and reports how it ended.

The supervisor imports this module, so torch is imported only inside the process.
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
from assay.base.json_log import use_log_format
from assay.base.visible import visible_output
from assay.elastic.failures import failure_of
from assay.elastic.task import RankReport, RankTask, StopFlag
from assay.records.rank_device import RankDevice
from assay.triage.hang import ALL_STACKS_SIGNAL, FLIGHT_SIGNAL, MAIN_STACK_SIGNAL, flight_path, stacks_path

NUDGE_S = 1.0
"""Seconds between wake-ups of the watch thread, which work around a glibc bug: see `die_with_supervisor`."""
REMEMBERED = 256
"""Number of collectives that the flight recorder keeps."""


@visible_output()
def rank_main(task: RankTask, pipe: Connection) -> None:
    """Entry point of a rank's process; its exit code is 0 only if it finished or stopped cleanly."""
    os.environ.update(task.environment)
    use_log_format("assay.rank", run=task.run.run_id, attempt=task.orders.attempt.attempt, rank=task.rank)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor handles Ctrl-C
    signal.pthread_sigmask(signal.SIG_BLOCK, {FLIGHT_SIGNAL})  # before any thread starts: threads inherit the mask
    stop = StopFlag()
    all_reported = die_with_supervisor(pipe)
    devices = [RankDevice()]

    def began(device: RankDevice) -> None:
        devices.append(device)
        pipe.send(device)

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
    # Skip Python's shutdown: after a peer's death, backend threads may wait forever.
    os._exit(code)


def die_with_supervisor(pipe: Connection) -> threading.Event:
    """Kill this process when the supervisor closes its end of the pipe, unless the returned event is set.

    A rank without a supervisor could commit until the next attempt fences it, and would hold its device forever.

    The watch thread also takes the GIL every `NUDGE_S`. A thread that releases the GIL on request waits until
    another one has taken it. Before glibc 2.41 that wake-up can be lost (glibc bug 25847), and a rank whose other
    threads are idle would hang in a step.
    """
    all_reported = threading.Event()
    poller = select.poll()
    poller.register(pipe.fileno(), 0)  # event mask 0: only the closed reader is reported

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
    """Dump torch's flight recorder (collectives of NCCL and gloo) when the signal arrives.

    A thread waits for the signal, because the main thread may be stuck in a collective."""
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
