"""Queries and stops a launch of any kind, given its record."""

from assay.launchers.launcher import LaunchState
from assay.launchers.local import kill_process, stop_process
from assay.launchers.slurm.launcher import cancel_job, job_state, kill_job, pending_reason
from assay.records.launch import Launch
from assay.records.run import Run
from assay.store.launches import process_state, saved_launches


def state_of(launch: Launch) -> LaunchState:
    """Return whether the launch is queued, running or ended."""
    return job_state(launch.job) if launch.launcher == "slurm" else process_state(launch)


def waiting_words(launch: Launch) -> str:
    """Return the scheduler's reason why a launch is queued."""
    return f"{launch.where()} is pending: {pending_reason(launch.job)}"


def stop(launch: Launch) -> None:
    """Ask a launch to commit and exit, without waiting. Does nothing if it has ended."""
    if launch.launcher == "slurm":
        cancel_job(launch.job)
    else:
        stop_process(launch)


def end(launch: Launch) -> None:
    """Kill a launch at once; its commits stay. Does nothing if it has ended."""
    if launch.launcher == "slurm":
        kill_job(launch.job)
    else:
        kill_process(launch)


def last_launch(run: Run) -> Launch | None:
    """Return the newest launch of a run; None if the run was never started."""
    launches = saved_launches(run)
    return launches[-1] if launches else None
