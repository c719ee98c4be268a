"""The actors of a run on a Ray cluster: a driver without a processor, and one actor a node.

    driver 'assay-RUN' --+-- placement group (STRICT_SPREAD): the fewest nodes of the run, all or none
    (restarts for ever)  |     +-- node 0: actor --> child --> assay train --resume RUN --on nodes --node 0
                         |     +-- node 1: ...
                         +-- further nodes, each where there is room: node 2, ...

The driver only starts nodes: who leads, what a lost node costs and which rows are read is up to the command that the
nodes run. All actors are detached and found by name, so a restarted driver finds the nodes of its predecessor.

    exit code 0    the run is finished: the driver ends when all nodes have
    75, or lost    the node is started again, elsewhere if its machine is gone
    2              final: the driver ends, and its log has the message
    other          a node that fails more than `MAX_FAILURES` times in a row, each within `EARLY_FAILURE_S`, is left
                   out; with fewer nodes left than the run needs, the driver ends

The driver begins again after an error of its own, and ends the run after as many in a row. `assay runs show` says why.

Ray's listings show an actor's arguments: the plan holds no secret, and a node gets its environment from its raylet.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from assay.base.clock import SystemClock, utc_text
from assay.base.errors import StoreError
from assay.base.units import number_of
from assay.elastic.nodes.connection import link_key
from assay.records.incident import Incident
from assay.store.attempts import saved_attempts
from assay.store.incidents import append_incident
from assay.store.objects import FolderStore

NAMESPACE = "assay"
STATE_FILE = "state.json"
LOOK_S = 2.0
"""Seconds between looks at the nodes of the cluster."""
RETRY_S = 5.0
"""Seconds until a node that has left or was lost is started again."""
EARLY_FAILURE_S = 300.0
"""A command that ran for so long is no early failure."""
MAX_FAILURES = 5
KILL_S = 5.0
"""Seconds that the actors get to kill their commands; without them, the processes above the commands do."""


class RayPlan(BaseModel):
    """What the driver starts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Name of the driver; those of the nodes and of the placement group begin with it."""
    run_dir: str
    home: str
    folder: str
    """Working directory of the commands."""
    command: tuple[str, ...]
    """Arguments of `assay` on each node, without those that differ."""
    fewest: int
    """Number of nodes without which the run does not begin."""
    most: int
    resources: dict[str, float]
    """Resources of each node: CPU, GPU, and those of the cluster's own."""
    left_out: tuple[str, ...] = ()
    """Host names on which no node is started."""

    def logs(self) -> Path:
        """Return the folder of the logs."""
        return Path(self.run_dir) / "ray"

    def actor_options(self) -> dict[str, Any]:
        """Return Ray's options of a node's actor: its resources, found by its name, outlives whoever started it."""
        others = {name: amount for name, amount in self.resources.items() if name not in ("CPU", "GPU")}
        return {
            "num_cpus": self.resources["CPU"],
            "num_gpus": self.resources.get("GPU", 0),
            "resources": others,
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "get_if_exists": True,
        }


class DriverState(BaseModel):
    """What a driver writes beside its logs, so that queries need no connection to the cluster."""

    model_config = ConfigDict(frozen=True)

    id: str
    """Ray's id of the driver."""
    state: Literal["queued", "running", "ended"]
    waits: str
    """What the run waits for; empty while it has a node."""
    at_s: float


class NodeActor:
    """Runs the command of one node as a child process."""

    def __init__(self, plan: str, index: int) -> None:
        self._plan = RayPlan.model_validate_json(plan)
        self._index = index
        self._child: subprocess.Popen[bytes] | None = None

    async def node_id(self) -> str:
        """Return Ray's id of the node where this actor is."""
        import ray

        node_id: str = ray.get_runtime_context().get_node_id()
        return node_id

    async def run(self) -> int:
        """Return the exit code of the command, which is started by the first call."""
        if self._child is None:
            self._child = self._start()
        code = await asyncio.to_thread(self._child.wait)
        if code < 0:
            await self.kill()  # the child was killed, not what it had started
        return code

    async def stop(self) -> None:
        """Ask the command to commit and exit."""
        if self._child is not None:
            self._child.terminate()

    async def kill(self) -> None:
        """Kill the command and its ranks."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def _start(self) -> "subprocess.Popen[bytes]":
        import ray

        raylet = os.getppid()  # it starts all workers of its node
        node_options = ("--node", str(self._index), "--address", ray.util.get_node_ip_address())
        child = (sys.executable, "-m", "assay.launchers.ray.child", f"{os.getpid()},{raylet}")
        with (self._plan.logs() / f"node-{self._index}.log").open("ab") as log:
            return subprocess.Popen(
                [*child, sys.executable, "-m", "assay", *self._plan.command, *node_options],
                cwd=self._plan.folder if Path(self._plan.folder).is_dir() else self._plan.run_dir,
                env={**os.environ, "ASSAY_HOME": self._plan.home},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


@dataclass
class _Node:
    """A node as the driver sees it."""

    actor: Any
    result: Any
    """A future: first of the id of its machine, then of the command's exit code."""
    node_id: str = ""
    """Ray's id of its machine; empty until it is scheduled."""
    began_s: float = 0.0
    is_leaving: bool = False


class RayDriver:
    """Keeps the nodes of a run running, in a thread, until the run is finished or stopped."""

    def __init__(self, plan: str) -> None:
        self._plan = RayPlan.model_validate_json(plan)
        self._text = plan
        self._clock = SystemClock()
        self._nodes: dict[int, _Node] = {}
        self._retry_s: dict[int, float] = {}
        self._failures = Counter[int]()
        """Node -> failures in a row."""
        self._is_finished = False
        self._ending = ""
        """Why the nodes are asked to leave; empty while they are not."""
        self._waits = "its driver starts"
        self._last_note = ""
        self._id = ""
        threading.Thread(target=self._drive, daemon=True).start()

    def run_dir(self) -> str:
        """Return the folder of the run."""
        return self._plan.run_dir

    def _drive(self) -> None:
        import ray

        self._id, num_failures = ray.get_runtime_context().get_actor_id(), 0
        while num_failures <= MAX_FAILURES:
            began_s = self._clock.monotonic_s()
            try:
                self._keep_nodes()
                break
            except Exception as error:
                self._note(traceback.format_exc())
                is_early = self._clock.monotonic_s() - began_s < EARLY_FAILURE_S
                num_failures = num_failures + 1 if is_early else 1
                if num_failures > MAX_FAILURES:
                    self._ending = f"its driver failed {num_failures} times in a row, at last with {error!r}"
                else:
                    self._clock.sleep_s(RETRY_S * 2 ** (num_failures - 1))
        self._note_end()
        with contextlib.suppress(Exception):  # Ray itself may be what fails
            release(self._plan.name)
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    def _keep_nodes(self) -> None:
        """Keep nodes running until the run is over."""
        self._find_nodes()
        if self._nodes:
            self._take_results()  # their machines, without which they would seem to wait for one
        else:
            link_key(Path(self._plan.run_dir), fresh=True)  # now, so that no node has to wait for it
        self._group = _placement_group(self._plan)
        self._group.wait(LOOK_S)
        while not self._is_over():
            self._look()
            self._write_state("queued" if self._waits else "running")
            self._take_results()

    def _note_end(self) -> None:
        """Write down that the run has ended, and why if it was not finished or stopped."""
        self._note(self._ending or "the run is finished")
        if self._ending not in ("", "asked to stop"):
            folder, text = Path(self._plan.run_dir), f"Ray actor {self._plan.name} ended the run: {self._ending}"
            about = {"run_id": folder.name, "attempt": len(saved_attempts(folder)) or 1, "at_s": self._clock.now_s()}
            with contextlib.suppress(OSError):
                append_incident(
                    folder, Incident.model_validate({"incident": "repeated_failure", "text": text, **about})
                )
        self._write_state("ended")

    def _find_nodes(self) -> None:
        """Find the nodes that a driver before this one has started."""
        import ray

        self._nodes.clear()
        for index in range(self._plan.most):
            with contextlib.suppress(ValueError):
                actor = ray.get_actor(f"{self._plan.name}/node-{index}")
                self._nodes[index] = _Node(actor, actor.node_id.remote())

    def _is_over(self) -> bool:
        """Return whether no node is left of a run that is finished or stopped."""
        if not self._ending and stop_file(self._plan.logs(), self._id).exists():
            self._ending = "asked to stop"
        return bool(self._ending or self._is_finished) and not self._nodes

    def _look(self) -> None:
        """Start nodes that are missing, and ask those to leave that have to."""
        draining = draining_nodes()
        if self._ending or self._is_finished:
            for index in [index for index, node in self._nodes.items() if not node.node_id]:
                self._forget(index)
        else:
            self._start_missing(draining)
        for index, node in self._nodes.items():
            if node.node_id and not node.is_leaving and (self._ending or node.node_id in draining):
                self._leave(index, self._ending or "its machine is being drained")

    def _start_missing(self, draining: set[str]) -> None:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        table = ray.util.placement_group_table(self._group)
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]} - draining
        if not alive & {*table["bundles_to_node_id"].values()}:
            if not any(node.node_id for node in self._nodes.values()):
                self._waits = missing_room(self._plan, draining)
                self._note(f"waits: {self._waits}")
            return
        self._waits = ""
        for index in range(self._plan.most):
            if index in self._nodes or self._failures[index] > MAX_FAILURES:
                continue
            if self._clock.monotonic_s() < self._retry_s.get(index, 0.0):
                continue
            if index >= self._plan.fewest:
                others = {node.node_id for node in self._nodes.values()} | {*table["bundles_to_node_id"].values()}
                where = {"label_selector": _selector(self._plan, others - {""})}
            elif table["bundles_to_node_id"].get(index) in alive:
                where = {"scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, index)}
            else:
                continue  # Ray moves the bundle when there is room for it
            options = {**self._plan.actor_options(), **where, "name": f"{self._plan.name}/node-{index}"}
            actor = ray.remote(NodeActor).options(**options).remote(self._text, index)
            self._nodes[index] = _Node(actor, actor.node_id.remote())

    def _take_results(self) -> None:
        import ray

        if not self._nodes:
            time.sleep(LOOK_S)
            return
        results = {node.result: index for index, node in self._nodes.items()}
        for result in ray.wait([*results], num_returns=1, timeout=LOOK_S)[0]:
            index = results[result]
            try:
                value = ray.get(result)
            except ray.exceptions.RayError as error:
                self._lost(index, error)
            else:
                self._scheduled(index, value) if isinstance(value, str) else self._ended(index, value)

    def _scheduled(self, index: int, node_id: str) -> None:
        node, shared = self._nodes[index], [i for i, other in self._nodes.items() if other.node_id == node_id]
        if shared and index >= self._plan.fewest:
            self._forget(index)  # its machine was given to another node meanwhile
            return
        for other in shared:
            self._leave(other, f"node {index} has its machine")
        node.node_id, node.began_s = node_id, self._clock.monotonic_s()
        node.result = node.actor.run.remote()
        self._note(f"node {index} runs on machine {node_id[:12]}")

    def _leave(self, index: int, why: str) -> None:
        self._note(f"node {index} is asked to commit and leave: {why}")
        self._nodes[index].is_leaving = True
        self._nodes[index].actor.stop.remote()

    def _ended(self, index: int, code: int) -> None:
        age_s = self._clock.monotonic_s() - self._nodes[index].began_s
        self._forget(index)
        self._note(f"node {index} has left with exit code {code}")
        if code == 0:
            self._is_finished = True
        elif code == 2 and not self._ending:
            self._ending = f"node {index} cannot run it: {self._last_line(index)}"
        elif code != 75 and not self._ending:
            self._count_failure(index, age_s, f"exit code {code}: {self._last_line(index)}")

    def _lost(self, index: int, error: Exception) -> None:
        import ray

        if isinstance(error, ray.exceptions.ActorUnavailableError):
            self._note(f"node {index} does not answer")
            self._nodes.pop(index)  # it may be there still, and is then found by its name
        else:
            self._note(f"node {index} is lost: {str(error).strip().partition(chr(10))[0]}")
            self._forget(index)
        self._is_finished = self._is_finished and bool(self._nodes)  # nobody may have evaluated it
        if getattr(error, "actor_init_failed", False):
            self._count_failure(index, 0.0, "an actor that does not start")

    def _count_failure(self, index: int, age_s: float, what: str) -> None:
        self._failures[index] = 1 if age_s > EARLY_FAILURE_S else self._failures[index] + 1
        self._retry_s[index] = self._clock.monotonic_s() + RETRY_S * 2 ** self._failures[index]
        num_failed = sum(count > MAX_FAILURES for count in self._failures.values())
        if self._plan.most - num_failed < self._plan.fewest:
            self._ending = f"node {index} failed {MAX_FAILURES + 1} times in a row, at last with {what}"

    def _forget(self, index: int) -> None:
        """Give the resources of a node back."""
        import ray

        ray.kill(self._nodes.pop(index).actor)
        self._retry_s[index] = self._clock.monotonic_s() + RETRY_S

    def _last_line(self, index: int) -> str:
        log = self._plan.logs() / f"node-{index}.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return next((line for line in reversed(lines) if line.strip()), f"nothing in {log}")

    def _write_state(self, state: Literal["queued", "running", "ended"]) -> None:
        written = DriverState(id=self._id, state=state, waits=self._waits, at_s=self._clock.now_s())
        with contextlib.suppress(StoreError):  # whoever asks then asks the cluster
            FolderStore(self._plan.logs()).put(STATE_FILE, written.model_dump_json().encode())

    def _note(self, text: str) -> None:
        if text == self._last_note:
            return
        self._last_note = text
        with contextlib.suppress(OSError), (self._plan.logs() / "driver.log").open("a") as log:  # the disk may be full
            log.write(f"{utc_text(self._clock.now_s())} {text}\n")


def stop_file(logs: Path, driver_id: str) -> Path:
    """Return the file that asks a driver to stop; it is found by a restarted driver, too."""
    return logs / f"stop-{driver_id}"


def missing_room(plan: RayPlan, draining: set[str]) -> str:
    """Return what the cluster lacks for the fewest nodes of a run."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in draining]
    machines = [node for node in alive if node["NodeManagerHostname"] not in plan.left_out]
    fitting = [
        node for node in machines if all(node["Resources"].get(name, 0) >= n for name, n in plan.resources.items())
    ]
    size = ", ".join(f"{amount:g} {name}" for name, amount in plan.resources.items())
    needs = f"it needs {number_of(plan.fewest, 'node')} with {size} each; the cluster has {len(fitting)} of that size"
    return needs if len(fitting) < plan.fewest else f"{needs}, and others use them"


def draining_nodes() -> set[str]:
    """Return the ids of nodes that will be taken away, as an autoscaler or `ray drain-node` announced it."""
    try:
        from ray._private.state import state

        return {*state.get_draining_nodes()}
    except (ImportError, AttributeError):  # not part of Ray's public interface
        return set()


def release(name: str, *, at_once: bool = False) -> None:
    """Kill the nodes of a driver and remove its placement group, if they are there; `at_once`: and their commands."""
    import ray

    actors = []
    for node in [text for text in ray.util.list_named_actors() if text.startswith(f"{name}/node-")]:
        with contextlib.suppress(ValueError):  # it has ended meanwhile
            actors.append(ray.get_actor(node))
    if at_once and actors:
        ray.wait([actor.kill.remote() for actor in actors], num_returns=len(actors), timeout=KILL_S)
    for actor in actors:
        ray.kill(actor)
    with contextlib.suppress(ValueError):
        ray.util.remove_placement_group(ray.util.get_placement_group(name))


def _placement_group(plan: RayPlan) -> Any:
    """Return the placement group of a run, by its name if a former driver has asked for it."""
    import ray

    with contextlib.suppress(ValueError):
        return ray.util.get_placement_group(plan.name)
    return ray.util.placement_group(
        [plan.resources] * plan.fewest,
        strategy="STRICT_SPREAD",
        name=plan.name,
        lifetime="detached",
        bundle_label_selector=[_selector(plan, set())] * plan.fewest,
    )


def _selector(plan: RayPlan, left_out: set[str]) -> dict[str, str]:
    """Return the label selector that leaves out these machines and those that guards name."""
    import ray

    named = {node["NodeID"] for node in ray.nodes() if node["NodeManagerHostname"] in plan.left_out}
    ids = ",".join(sorted(left_out | named))
    return {"ray.io/node-id": f"!in({ids})"} if ids else {}
