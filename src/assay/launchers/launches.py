"""The table of launchers; queries and stops a launch of any kind, given its record."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from assay.base.json_log import plain_log
from assay.launchers.launcher import LauncherModule, LaunchState, SchedulerModule
from assay.records.launch import Launch, LaunchKind
from assay.records.run import Run
from assay.store.home import Home
from assay.store.launches import saved_launches

SCHEDULERS: Mapping[LaunchKind, str] = {
    "slurm": "assay.launchers.slurm.launcher",
    "kubernetes": "assay.launchers.kubernetes.launcher",
    "ray": "assay.launchers.ray.launcher",
}
"""Launcher -> its module, a `SchedulerModule`."""


def scheduler(kind: LaunchKind) -> SchedulerModule:
    """Import the module of a scheduler's launcher."""
    return cast(SchedulerModule, importlib.import_module(SCHEDULERS[kind]))


def _module_of(launch: Launch) -> LauncherModule:
    name = SCHEDULERS.get(launch.launcher, "assay.launchers.local")
    return cast(LauncherModule, importlib.import_module(name))


def state_of(launch: Launch) -> LaunchState:
    """Return whether the launch is queued, running or ended."""
    return _module_of(launch).state(launch)


def waiting_words(launch: Launch) -> str:
    """Return the scheduler's reason why a launch is queued."""
    return f"{launch.where()} is pending: {scheduler(launch.launcher).pending_reason(launch)}"


def stop(launch: Launch) -> None:
    """Ask a launch to commit and exit, without waiting. Does nothing if it has ended."""
    _module_of(launch).stop(launch)


def kill(launch: Launch) -> None:
    """Kill a launch at once; its commits stay. Does nothing if it has ended."""
    _module_of(launch).kill(launch)


def last_words(launch: Launch, *, num_characters: int = 600) -> str:
    """Return why the scheduler ended a launch, if it tells, or else the end of what the launch printed."""
    end_reason = getattr(_module_of(launch), "end_reason", None)
    if end_reason is not None and (reason := end_reason(launch)):
        return str(reason)[-num_characters:]
    path = Path(launch.log)
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4 * num_characters))
        return plain_log(file.read().decode(errors="replace"))[-num_characters:].strip()


def last_launch(run: Run) -> Launch | None:
    """Return the newest launch of a run; None if the run was never started."""
    launches = saved_launches(run)
    return launches[-1] if launches else None


def has_process(home: Home, run_id: str) -> bool:
    """Return whether the process or job that trains a run lives, which then evaluates and audits it."""
    last = last_launch(home.run(run_id)) if home.has_run(run_id) else None
    return last is not None and state_of(last) in ("queued", "running")
