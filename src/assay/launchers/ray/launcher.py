"""Starts a run on a Ray cluster: `driver` has the actors, `client` is the process that connects.

    assay train --on ray --> client --> driver 'assay-RUN' --> one actor a node --> assay train --on nodes

Only Ray's own wheel is needed (`pip install 'assay[ray]'`), and this package is imported in the client alone.
"""

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt, ValidationError, field_validator

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError, NotInstalledError, TrainingError
from assay.base.names import shell_line
from assay.launchers.guards import hosts_left_out
from assay.launchers.launcher import LaunchState, SchedulerConfig, SchedulerLauncher, resume_command
from assay.launchers.ray.driver import STATE_FILE, DriverState, RayPlan, stop_file
from assay.records.launch import Launch
from assay.records.run import Run
from assay.store.home import Home
from assay.store.launches import save_launch, saved_launches
from assay.training.recipe import recipe_of

FRESH_S = 60.0
"""Age in seconds up to which the state that a driver wrote counts; it writes every two seconds."""
CLIENT_S = 150.0
"""Seconds until a client that does not answer is killed."""


class RayConfig(SchedulerConfig):
    """Ray options of a run."""

    ray_address: str | None = None
    """Address of the cluster, HOST:PORT; by default $RAY_ADDRESS, else the cluster that this machine is a node of."""
    gpus_per_node: NonNegativeInt = 0
    """GPUs of each node, one a worker; 0: the workers train on CPUs."""
    resource: tuple[str, ...] = ()
    """Further resources that each node needs, NAME=AMOUNT, as `ray start --resources` gave them to machines."""

    @field_validator("resource")
    @classmethod
    def _are_amounts(cls, resources: tuple[str, ...]) -> tuple[str, ...]:
        for text in resources:
            if not re.fullmatch(r"[^=,\s]+=\d+(\.\d+)?", text) or text.partition("=")[0] in ("CPU", "GPU"):
                raise ValueError(f"{text!r} is not like NAME=AMOUNT, with the name of a resource of your own")
        return resources

    def counted(self) -> str:
        """Return the resource that a machine of this run has for certain."""
        return self.resource[0].partition("=")[0] if self.resource else "GPU" if self.gpus_per_node else "CPU"


def check(config: RayConfig, *, world_size: int) -> Sequence[str]:
    """Raise `ConfigError` unless the cluster answers, and all of its machines have this version of assay."""
    config.size(world_size)
    _call_client("check", config.ray_address, resource=config.counted())
    return ()


def job_text(home: Home, run: Run, config: RayConfig, *, world_size: int, options: tuple[str, ...] = ()) -> str:
    """Return what would be started, as text."""
    plan = _plan(home, run, config, world_size=world_size, options=options)
    bundle = ", ".join(f"{name}: {amount:g}" for name, amount in plan.resources.items())
    return f"""\
# Run {run.run_id} on a Ray cluster, from its last commit to its end. Nothing was started.
cluster: {config.ray_address or "$RAY_ADDRESS, else the one of this machine"}
driver: actor {plan.name}, detached, without a processor, restarted wherever it dies
placement group: {plan.name}, STRICT_SPREAD, {plan.fewest} x {{{bundle}}}
further nodes: {plan.most - plan.fewest}, each when there is room
each node I runs, as a child of its actor, with ASSAY_HOME={shell_line(plan.home)}:
  assay {shell_line(*plan.command)} --node I --address ITS_IP
logs: {plan.logs()}/node-I.log
"""


class RayLauncher(SchedulerLauncher):
    """Starts runs on the cluster of a config. All machines must see the folder of runs."""

    def _start(self, run: Run, world_size: int) -> Launch:
        """Start the driver; the launch's `job` is its name, and `process` its id and the cluster's address."""
        plan = _plan(self._home, run, self._config, world_size=world_size, options=self._options)
        plan.logs().mkdir(parents=True, exist_ok=True)
        launches = [launch for launch in saved_launches(run) if launch.launcher == "ray"]
        if launches and state(launches[-1]) in ("queued", "running"):
            raise ConfigError(launches[-1].conflict_text())
        known = [_driver_id(launch) for launch in launches]
        request = {"plan": plan.model_dump_json(), "resource": self._config.counted(), "known": known}
        started = _call_client("start", self._config.ray_address, **request)
        process, log = f"{started['id']}@{started['address']}", str(plan.logs() / "node-0.log")
        return save_launch(run, launcher="ray", job=plan.name, process=process, world_size=world_size, log=log)


CONFIG, LAUNCHER, check_run = RayConfig, RayLauncher, job_text


def state(launch: Launch) -> LaunchState:
    """Return the state of a driver; `elsewhere` if its cluster cannot be reached from here."""
    if (written := _written_state(launch)) is not None:
        return written.state
    try:
        found: LaunchState = _query_driver("state", launch)["state"]
    except ConfigError:
        return "elsewhere"
    return found


def pending_reason(launch: Launch) -> str:
    """Return what the driver waits for."""
    written = _written_state(launch)
    return (written and written.waits) or "a machine for its driver"


def _written_state(launch: Launch) -> DriverState | None:
    """Return what the driver has written; None if it is not the last word and too old."""
    try:
        written = DriverState.model_validate_json(Path(launch.log).with_name(STATE_FILE).read_bytes())
    except (OSError, ValidationError):
        return None
    # Of the driver's clock and this one, either may be ahead.
    is_current = written.state == "ended" or abs(SystemClock().now_s() - written.at_s) < FRESH_S
    return written if written.id == _driver_id(launch) and is_current else None


def _driver_id(launch: Launch) -> str:
    return launch.process.partition("@")[0]


def stop(launch: Launch) -> None:
    """Ask the driver, by a file that it looks for, to let all nodes commit and exit."""
    stop_file(Path(launch.log).parent, _driver_id(launch)).touch()


def kill(launch: Launch) -> None:
    """Kill driver, nodes and ranks at once."""
    _query_driver("kill", launch)
    Path(launch.log).with_name(STATE_FILE).unlink(missing_ok=True)


def _plan(home: Home, run: Run, config: RayConfig, *, world_size: int, options: tuple[str, ...]) -> RayPlan:
    size, trainer = config.size(world_size, options), recipe_of(run).trainer
    on_node = ("--on", "nodes", "--workers-per-node", str(size.workers_per_node), "--launched")
    command = resume_command(run, world_size=world_size, options=(*on_node, *options), program="assay")
    named = dict(text.split("=") for text in config.resource)
    return RayPlan(
        name=f"assay-{run.run_id}",
        run_dir=run.run_dir,
        home=str(home.folder.resolve()),
        folder=str(Path.cwd()),
        command=tuple(command[1:]),
        fewest=size.fewest,
        most=size.most,
        resources={
            "CPU": size.workers_per_node * trainer.threads_per_rank,
            **({"GPU": config.gpus_per_node} if config.gpus_per_node else {}),
            **{name: float(amount) for name, amount in named.items()},
        },
        left_out=tuple(hosts_left_out(home, run, world_size=world_size)),
    )


def _query_driver(verb: str, launch: Launch) -> dict[str, Any]:
    return _call_client(verb, launch.process.partition("@")[2], name=launch.job, actor_id=_driver_id(launch))


def _call_client(verb: str, cluster: str | None, **request: Any) -> dict[str, Any]:
    """Return the response of a client; raises `ConfigError` with its message if it has one."""
    if importlib.util.find_spec("ray") is None:
        raise NotInstalledError("the Python package 'ray' is not installed: pip install 'assay[ray]', on all machines.")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "assay.launchers.ray.client", verb],
            input=json.dumps({"cluster": cluster, **request}),
            capture_output=True,
            text=True,
            timeout=CLIENT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise TrainingError(f"the Ray cluster did not answer within {CLIENT_S:.0f} s.") from error
    try:
        response: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        raise TrainingError(f"Ray's client ended with {done.returncode}: {done.stderr.strip()[-2000:]}") from error
    if "error" in response:
        raise ConfigError(response["error"])
    return response
