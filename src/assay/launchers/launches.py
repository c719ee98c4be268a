"""Asks after a launch, and stops it, wherever it is: all that is needed is its record."""

from assay.launchers.launcher import LaunchState
from assay.launchers.local import kill_process, stop_process
from assay.launchers.slurm.launcher import cancel_job, job_state, kill_job, pending_reason
from assay.records.launch import Launch
from assay.records.run import Run
from assay.store.launches import process_state, saved_launches


def state_of(launch: Launch) -> LaunchState:
    """Whether it waits, runs, or is no more."""
    return job_state(launch.job) if launch.launcher == "slurm" else process_state(launch)


def waiting_words(launch: Launch) -> str:
    """What a launch that is queued waits for, as its scheduler says."""
    return f"{launch.where()} is pending: {pending_reason(launch.job)}"


def stop(launch: Launch) -> None:
    """Ask it to commit and leave; does not wait. What has ended stays so."""
    if launch.launcher == "slurm":
        cancel_job(launch.job)
    else:
        stop_process(launch)


def end(launch: Launch) -> None:
    """Take its devices from it at once; its commits stay. What has ended stays so."""
    if launch.launcher == "slurm":
        kill_job(launch.job)
    else:
        kill_process(launch)


def last_launch(run: Run) -> Launch | None:
    """The newest; None for a run that was never started."""
    launches = saved_launches(run)
    return launches[-1] if launches else None
