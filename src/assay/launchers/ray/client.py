"""Talks to a Ray cluster in a process of its own: `python -m assay.launchers.ray.client VERB`, JSON in and out.

A process of its own, because Ray lists the whole command line of whoever connects, which may hold a store's key, and
because connecting hangs or exits where a cluster is half gone.
"""

import contextlib
import hashlib
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from assay.base.errors import ConfigError
from assay.launchers.ray.driver import NAMESPACE, RayDriver, release

RESPONSE_TIMEOUT_S = 30.0
"""Seconds that the driver and the machines of the cluster get to answer."""


def check(resource: str, home: str = "") -> dict[str, str]:
    """Raise `ConfigError` for machines with the resource on which the command cannot run; `home`: one they must see."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def probe() -> tuple[str, bool, str]:  # a nested function travels as bytecode: the package may be missing there
        ledger = hashlib.sha256(os.environ.get("ASSAY_LEDGER", "").encode()).hexdigest()
        try:
            from assay.base.code_version import code_version
        except ImportError as error:
            return f"no assay ({error})", False, ledger
        return code_version(), Path(home).is_dir() or not home, ledger

    version, _, ledger = probe()
    machines = {
        ray.remote(probe)
        .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
        .remote(): f"machine {node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get(resource)
    }
    ready, _ = ray.wait([*machines], num_returns=len(machines), timeout=RESPONSE_TIMEOUT_S) if machines else ([], [])
    for reference in ready:
        try:
            its_version, sees_home, its_ledger = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise ConfigError(f"{machines[reference]} cannot run assay: {error}") from error
        except ray.exceptions.RayError:
            continue  # the machine is gone; Ray lists it for a while
        if its_version != version:
            raise ConfigError(
                f"{machines[reference]} has {its_version} in the environment of its 'ray start', and this process has "
                f"{version}. Install the same version there, or leave the machine out with --resource."
            )
        if not sees_home:
            raise ConfigError(f"{machines[reference]} does not see {home}, which all machines of a run share.")
        if its_ledger != ledger:
            raise ConfigError(
                f"{machines[reference]} has another $ASSAY_LEDGER than this process: set it in the environment of "
                "'ray start' there, and start Ray there again."
            )
    return {}


def start(plan: str, resource: str, known: list[str]) -> dict[str, str]:
    """Start the driver; `known`: ids of drivers that have a record. One without is found instead of started again."""
    import ray

    name, home, run_dir = (json.loads(plan)[key] for key in ("name", "home", "run_dir"))
    found = _driver(name)
    if found is None:
        check(resource, home)
        release(name, at_once=True)  # what a driver that was killed by hand has left
        options = {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "num_cpus": 0, "max_restarts": -1}
        try:
            actor = ray.remote(RayDriver).options(**options).remote(plan)
        except ValueError as error:
            raise ConfigError(f"another command has started '{name}' at the same time.") from error
    else:
        actor = found
    its_run_dir = _run_dir(actor)
    if found is not None and (found._actor_id.hex() in known or its_run_dir not in ("", run_dir)):
        raise ConfigError(
            f"the cluster has an actor '{name}' already, of the run in {its_run_dir}. Stop it, or choose another "
            "--run-id."
        )
    return {"id": actor._actor_id.hex(), "address": ray.get_runtime_context().gcs_address}


def state(name: str, actor_id: str) -> dict[str, str]:
    """Return whether the driver is there."""
    return {"state": "ended" if _driver(name, actor_id) is None else "running"}


def kill(name: str, actor_id: str) -> dict[str, str]:
    """Kill the driver, the commands and their ranks."""
    import ray

    if (actor := _driver(name, actor_id)) is not None:
        ray.kill(actor, no_restart=True)
        release(name, at_once=True)
    return {}


def _driver(name: str, actor_id: str | None = None) -> Any:
    """Return the driver with this name, and with this id; None if there is none."""
    import ray

    with contextlib.suppress(ValueError):
        actor = ray.get_actor(name)
        return actor if actor_id in (None, actor._actor_id.hex()) else None
    return None


def _run_dir(actor: Any) -> str:
    """Return the folder of a driver's run; empty if it does not answer. Raises `ConfigError` if it cannot start."""
    import ray

    try:
        run_dir: str = ray.get(actor.run_dir.remote(), timeout=RESPONSE_TIMEOUT_S)
    except ray.exceptions.RayError as error:
        if getattr(error, "actor_init_failed", False):
            raise ConfigError(f"the driver does not start: {error}") from error
        return ""
    return run_dir


def _connect(address: str) -> None:
    """Connect to the cluster; raises `ConfigError` if there is none, or of other versions."""
    if "://" in address or address == "local":
        raise ConfigError(
            f"{address}: give HOST:PORT of the cluster (usually port 6379), and run this on one of its machines. Ray's "
            "client protocol (ray://) would tie the run to this process."
        )
    import ray

    host, _, port = address.rpartition(":")
    if host and port.isdigit():  # Ray itself would try for minutes
        try:
            socket.create_connection((host, int(port)), timeout=10.0).close()
        except OSError as error:
            raise ConfigError(f"no Ray cluster at {address}: {error}. 'ray status' shows where yours is.") from error
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        if "ersion mismatch" in str(error):
            raise ConfigError(f"this environment does not fit the cluster. {' '.join(str(error).split())}") from error
        raise ConfigError(
            f"no Ray cluster at {address}: {error}. Run this on a node of the cluster ('ray start' makes one of a "
            "machine), and name the cluster with --ray-address HOST:PORT or $RAY_ADDRESS."
        ) from error


_VERBS: Mapping[str, Callable[..., dict[str, str]]] = {verb.__name__: verb for verb in (check, start, state, kill)}

if __name__ == "__main__":
    request = json.load(sys.stdin)
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints is no response
    try:
        _connect(request.pop("cluster") or os.environ.get("RAY_ADDRESS") or "auto")
        response = _VERBS[sys.argv[1]](**request)
    except ConfigError as error:
        response = {"error": str(error)}
    print(json.dumps(response), file=output, flush=True)
    os._exit(0)  # the ends of Ray's threads take seconds
