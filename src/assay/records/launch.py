"""Where a run was started: what finds it again, and stops it, from another process or host."""

from typing import Literal

from pydantic import PositiveInt

from assay.records.record import Record

LaunchKind = Literal["here", "background", "slurm", "kubernetes", "ray"]
"""`here`: in the calling process; `background`: in a new process on the same machine; else a scheduler."""

_SCHEDULED = {"slurm": "Slurm job", "kubernetes": "Kubernetes Job", "ray": "Ray actor"}


class Launch(Record):
    """A start of a run, with all its attempts and requeues."""

    run_id: str
    number: PositiveInt
    launcher: LaunchKind
    job: str
    """Process id, job number, or name: Kubernetes' is NAMESPACE/NAME."""
    host: str
    """For a job, where it was submitted."""
    process: str = ""
    """Identifies the process, or Kubernetes' Job (UID and server), if `job` is reused."""
    started_by: str
    started_s: float
    requested_s: float | None = None
    """Start of the command, if it started only this run."""
    world_size: PositiveInt
    log: str
    """Empty for a terminal."""
    ended_s: float | None = None
    """When the training returned to a process that lives on, such as a notebook; None while it trains or if it died."""

    def is_process(self) -> bool:
        """Return whether it is a process of `host`, and no scheduler's."""
        return self.launcher not in _SCHEDULED

    def job_name(self) -> str:
        """`Slurm job 12`, `process 345`."""
        return f"{_SCHEDULED.get(self.launcher, 'process')} {self.job}"

    def where(self) -> str:
        """`Slurm job 12`, `process 345 on node7`."""
        return f"{self.job_name()} on {self.host}" if self.is_process() else self.job_name()

    def conflict_text(self) -> str:
        """Return why a second launch of the run is refused while this one trains it."""
        stuck = " If that process is stuck, --take-over continues from the run's last commit."
        return (
            f"run {self.run_id} is being trained by {self.where()}: 'assay runs show {self.run_id}' shows it, 'assay "
            f"train stop {self.run_id}' stops it with a commit.{stuck if self.is_process() else ''}"
        )
