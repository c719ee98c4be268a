"""Where a run was started: what finds it again, and stops it, from another process or host."""

from typing import Literal

from pydantic import PositiveInt

from assay.records.record import Record

LaunchPlace = Literal["here", "background", "slurm"]
"""`here`: in the process that was asked; `background`: in one of its own on the same machine."""


class Launch(Record):
    """One start of a run somewhere; it may live through several attempts, and a Slurm job through requeues."""

    run_id: str
    number: PositiveInt
    """Among the run's launches, from 1."""
    place: LaunchPlace
    job: str
    """The place's own name for it: a process, a job number."""
    host: str
    """Where the process is; for a job, where it was submitted."""
    process: str = ""
    """What tells the process from a later one of the same number; empty for a job."""
    started_by: str
    """The user's name."""
    started_s: float
    """Seconds since the Unix epoch."""
    asked_s: float | None = None
    """When the command was begun that started this run alone; None if it started others, too."""
    world_size: PositiveInt
    log: str
    """File of what it prints; empty where that goes to a terminal."""

    def where(self) -> str:
        """`Slurm job 12`, `process 345 on node7`."""
        return f"Slurm job {self.job}" if self.place == "slurm" else f"process {self.job} on {self.host}"
