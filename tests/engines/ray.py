"""A real Ray cluster: a head without processors, and three machines of one processor each."""

import os
import subprocess
import sys
from pathlib import Path

from assay.launchers.launches import state_of
from assay.launchers.ray.launcher import RayConfig, RayLauncher
from assay.records.launch import Launch
from assay.records.run import Run
from assay.store.home import Home
from engines.engine import Engine, StartedRun, command_lines, wait_until
from ray_cluster import RayCluster, RayNode

NUM_MACHINES = 3
LIST_ALL = (
    "import ray; ray.init(address='auto', log_to_driver=False); from ray._private.state import state; "
    "print(ray.nodes(), state.actor_table(None), state.job_table(), ray.util.placement_group_table())"
)


class Ray(Engine):
    """A machine is a raylet and all that it has started."""

    SIZES = (1, 2)

    def __init__(self, cluster: RayCluster) -> None:
        self._cluster = cluster
        self._keep(NUM_MACHINES)

    def launcher(self, *, nodes: int = 1, options: tuple[str, ...] = ()) -> RayLauncher:
        if any(option.startswith("--workers=") for option in options):
            self._keep(self.SIZES[0])
        return RayLauncher(Home.from_environment(), RayConfig(nodes=nodes), options)

    def park(self, run: Run) -> Launch:
        return RayLauncher(Home.from_environment(), RayConfig(nodes=2 * NUM_MACHINES)).start(
            run, world_size=2 * NUM_MACHINES
        )

    def output(self, started: StartedRun) -> str:
        logs = sorted(Path(started.run.run_dir, "ray").glob("*.log"))
        return "".join(file.read_text(errors="replace") for file in logs)

    def lose(self, started: StartedRun, index: int) -> None:
        self._cluster.kill(self.machine(started, index))

    def resize(self, started: StartedRun, number: int) -> None:
        self._keep(number)

    def drain(self, started: StartedRun, index: int) -> None:
        machine = self.machine(started, index)
        self._cluster.drain(machine, seconds=60)
        wait_until(lambda: not self.commands(machine, started, index), "the command to leave the machine")
        wait_until(lambda: f"node {index} has left with exit code 75" in self.output(started), "its exit code")
        self._cluster.kill(machine)

    def suspend(self, started: StartedRun) -> None:
        used = [self.machine(started, index) for index in (0, 1)]
        for machine in self._machines():
            if machine not in used:
                self._cluster.kill(machine)
        for machine in used:
            self._cluster.drain(machine, seconds=120)
        wait_until(lambda: state_of(started.launch) == "queued", "the run to leave them")
        for machine in used:
            self._cluster.kill(machine)

    def resume(self, started: StartedRun) -> None:
        self._keep(2)

    def num_jobs(self, run: Run) -> int:
        names = [line for node in self._cluster.nodes for _, line in command_lines_of(node)]
        return sum(line.startswith("ray::RayDriver") for line in names)

    def listings(self, started: StartedRun) -> str:
        environment = {**os.environ, "AWS_SECRET_ACCESS_KEY": ""}
        command = [sys.executable, "-c", LIST_ALL]
        listed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        written = [file.read_text(errors="replace") for file in self._cluster.logs()]
        return "\n".join([listed, *written, *(line for _, line in command_lines())])

    def _machines(self) -> list[RayNode]:
        """All but the head."""
        self._cluster.forget_ended()
        return self._cluster.nodes[1:]

    def _keep(self, number: int) -> None:
        """Have so many machines."""
        for machine in self._machines()[number:]:
            self._cluster.kill(machine)
        self._cluster.add_nodes(number - len(self._machines()))

    def machine(self, started: StartedRun, index: int) -> RayNode:
        return next(node for node in self._cluster.nodes if self.commands(node, started, index))

    def commands(self, node: RayNode, started: StartedRun, index: int) -> list[int]:
        """The processes of the command of a node on a machine."""
        words = ("assay.launchers.ray.child", started.run.run_id, f"--node {index} ")
        return [pid for pid, line in command_lines_of(node) if all(word in line for word in words)]


def command_lines_of(node: RayNode) -> list[tuple[int, str]]:
    """Those of a machine's processes."""
    own = {*node.processes()}
    return [(pid, line) for pid, line in command_lines() if pid in own]
