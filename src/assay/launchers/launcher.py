"""What a launcher is: it starts a run somewhere and returns at once; the run needs nobody who waits for it.

Whatever the place, the contract is the same (tests/contract/test_launchers.py): the run reaches its last step
with the same weights; told to stop, it commits and leaves; started again, it goes on. The launch is on record
in the run's folder, and who has the record can ask and stop (`places.launches`), whoever started it.
"""

import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

from assay.base.errors import NotInstalledError
from assay.records.launch import Launch
from assay.records.run import Run

LaunchState = Literal["queued", "running", "ended", "elsewhere"]
"""`ended` says nothing about success: the run's log does. `elsewhere`: a process on another host, of which
nothing can be seen from this one."""


class Launcher(Protocol):
    """Starts runs on some kind of machine."""

    def start(self, run: Run, *, world_size: int) -> Launch:
        """Begin the run, or go on with it from its last commit."""
        ...


def resume_command(run: Run, *, world_size: int, options: Sequence[str] = ()) -> list[str]:
    """The command line that goes on with a run; `--workers=8..64` among the options is said instead of
    `world_size`."""
    workers = [] if any(option.startswith("--workers=") for option in options) else ["--workers", str(world_size)]
    return [assay_program(), "train", "--resume", run.run_id, *workers, *options]


def assay_program() -> str:
    """The `assay` of this installation."""
    program = Path(sysconfig.get_path("scripts")) / "assay"
    if not program.exists():
        raise NotInstalledError(f"{program}: no such program. Install assay in this environment: pip install assay.")
    return str(program)
