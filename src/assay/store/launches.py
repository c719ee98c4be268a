"""The files in which a run's launches are written down: `launches/0001.json`, ..., each put only if absent.

And whether the process that a launch began is still there, which only its own host can tell.
"""

import getpass
import os
import socket
import time
from pathlib import Path
from typing import Literal

from assay.base.clock import SystemClock
from assay.records.launch import Launch, LaunchKind
from assay.records.run import Run
from assay.store.readable import readable


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
    """Write down what was started, under the next number that is free."""
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
    """All launches of a run that can be read, the first one first."""
    return readable(Launch, sorted((Path(run.run_dir) / "launches").glob("*.json")))[0]


def process_key(pid: int) -> str:
    """What tells a process from a later one of the same number: its boot, and the tick at which it began.

    Empty where there is no such process, or only what is left of one.
    """
    try:
        state, tick = _state_and_tick(pid)
    except OSError:
        return ""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return "" if state in "ZX" else f"{boot}/{tick}"


def process_began_s() -> float | None:
    """When this process was begun, in seconds since the Unix epoch; None where the system does not say."""
    try:
        _, tick = _state_and_tick(os.getpid())
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(tick) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return None
    return SystemClock().now_s() - age_s


def _state_and_tick(pid: int) -> tuple[str, str]:
    """A process's state, and the tick since the boot at which it began; `OSError` where there is none."""
    state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return state, fields[18]


def process_state(launch: Launch) -> Literal["running", "ended", "elsewhere"]:
    """The state of a run in a process."""
    if launch.host != socket.gethostname():
        return "elsewhere"
    is_alive = launch.process == process_key(int(launch.job))
    # Who trains does not ask: a process that asks about itself is done with the run.
    return "running" if is_alive and int(launch.job) != os.getpid() else "ended"
