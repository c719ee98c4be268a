"""A run's launches: `launches/0001.json`, ..., each put only if absent; and the state of their processes.

A process that trained a run itself and lives on writes its launch again with the time at which it was done.

Only the host of a process can check whether it is alive.
"""

import getpass
import os
import socket
import time
from pathlib import Path
from typing import Literal

from assay.base.clock import SystemClock
from assay.records.launch import Launch, LaunchKind
from assay.records.record import readable_records
from assay.records.run import Run


def save_launch(
    run: Run,
    *,
    launcher: LaunchKind,
    job: str,
    world_size: int,
    log: str = "",
    process: str = "",
    requested_s: float | None = None,
) -> Launch:
    """Record a launch under the next free number."""
    from assay.store.objects import open_store  # here, for who reads needs none

    store = open_store(run.run_dir)
    number = len(saved_launches(run)) + 1
    while True:
        launch = Launch(
            run_id=run.run_id,
            number=number,
            launcher=launcher,
            job=job,
            host=socket.gethostname(),
            process=process,
            started_by=getpass.getuser(),
            started_s=SystemClock().now_s(),
            requested_s=requested_s,
            world_size=world_size,
            log=log,
        )
        if store.put_if_absent(f"launches/{number:04d}.json", launch.to_json().encode()):
            return launch
        number += 1


def saved_launches(run: Run) -> list[Launch]:
    """Return a run's readable launches in order."""
    return readable_records(Launch, sorted((Path(run.run_dir) / "launches").glob("*.json")))[0]


def end_launch_here(run: Run) -> Launch | None:
    """Record that this process no longer trains the run; None unless the last launch is its own and open."""
    from assay.store.objects import FolderStore  # without retries: the end of the process says it, too

    last = next(reversed(saved_launches(run)), None)
    if last is None or not is_open_here(last):
        return None
    ended = last.model_copy(update={"ended_s": SystemClock().now_s()})
    FolderStore(Path(run.run_dir)).put(f"launches/{last.number:04d}.json", ended.to_json().encode())
    return ended


def process_key(pid: int) -> str:
    """Return a key of a process that distinguishes it from later ones with the same pid: boot id and start tick.

    Empty if there is no such process, or only a zombie.
    """
    try:
        state, tick = _state_and_tick(pid)
    except OSError:
        return ""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return "" if state in "ZX" else f"{boot}/{tick}"


def process_began_s() -> float | None:
    """Return this process's start in seconds since the Unix epoch; None if the system does not report it."""
    try:
        _, tick = _state_and_tick(os.getpid())
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(tick) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return None
    return SystemClock().now_s() - age_s


def _state_and_tick(pid: int) -> tuple[str, str]:
    """Return a process's state and start tick since boot. Raises `OSError` without such a process."""
    state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return state, fields[18]


def process_state(launch: Launch) -> Literal["running", "ended", "elsewhere"]:
    """Return the state of a launch in a process; `elsewhere` for a scheduler's."""
    if launch.ended_s is not None:
        return "ended"
    if not launch.is_process() or launch.host != socket.gethostname():
        return "elsewhere"
    is_alive = launch.process == process_key(int(launch.job))
    # Who trains does not ask: a process that asks about itself is done with the run, unless that is a recorded one.
    return "running" if is_alive and int(launch.job) != os.getpid() else "ended"


def is_open_here(launch: Launch) -> bool:
    """Return whether a launch is in this process, and its end is not on record."""
    ours = ("here", socket.gethostname(), str(os.getpid()), None)
    return (launch.launcher, launch.host, launch.job, launch.ended_s) == ours
