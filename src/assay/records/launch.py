"""Where a run was started: what finds it again, and stops it, from another process or host."""

from typing import Literal

from pydantic import PositiveInt

from assay.records.record import Record

LaunchKind = Literal["here", "background", "slurm"]
"""`here`: in the calling process; `background`: in a new process on the same machine."""


class Launch(Record):
    """A start of a run, with all its attempts and requeues."""

    run_id: str
    number: PositiveInt
    launcher: LaunchKind
    job: str
    """Process id or job number."""
    host: str
    """For a job, where it was submitted."""
    process: str = ""
    """Identifies the process if `job` is reused."""
    started_by: str
    started_s: float
    requested_s: float | None = None
    """Start of the command, if it started only this run."""
    world_size: PositiveInt
    log: str
    """Empty for a terminal."""
    ended_s: float | None = None
    """When the training returned to a process that lives on, such as a notebook; None while it trains or if it died."""

    def where(self) -> str:
        """`Slurm job 12`, `process 345 on node7`."""
        return f"Slurm job {self.job}" if self.launcher == "slurm" else f"process {self.job} on {self.host}"
