"""The launcher protocol: a launcher starts a run somewhere and returns at once.

All launchers keep one contract (tests/contract/test_launchers.py): the run reaches its last step with the same
weights; a stopped run commits and exits; a restarted run resumes. The launch is recorded in the run's folder, and
anyone with the record can query or stop it (`launchers.launches`).
"""

import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

from assay.base.errors import NotInstalledError
from assay.records.launch import Launch
from assay.records.run import Run

LaunchState = Literal["queued", "running", "ended", "elsewhere"]
"""`ended` does not imply success, which the run's log tells. `elsewhere`: a process on another host, whose state is
unknown here."""


class Launcher(Protocol):
    """Starts runs on some kind of machine."""

    def start(self, run: Run, *, world_size: int) -> Launch:
        """Start the run, or resume it from its last commit."""
        ...


def resume_command(run: Run, *, world_size: int, options: Sequence[str] = ()) -> list[str]:
    """Return the command that resumes a run. A `--workers=...` among the options replaces `world_size`."""
    workers = [] if any(option.startswith("--workers=") for option in options) else ["--workers", str(world_size)]
    return [assay_program(), "train", "--resume", run.run_id, *workers, *options]


def assay_program() -> str:
    """Return the path of this installation's `assay` program."""
    program = Path(sysconfig.get_path("scripts")) / "assay"
    if not program.exists():
        raise NotInstalledError(f"{program}: no such program. Install assay in this environment: pip install assay.")
    return str(program)
