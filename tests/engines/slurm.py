"""A real Slurm of two nodes."""

import subprocess
import sys
from pathlib import Path

from assay.launchers.launches import state_of
from assay.launchers.slurm.launcher import SlurmConfig, SlurmLauncher
from assay.records.launch import Launch
from assay.records.run import Run
from assay.store.home import Home
from engines.engine import Engine, StartedRun, command_lines, family, kill_all, wait_until
from slurm_cluster import SlurmCluster

WHILE_SUSPENDED_S = 600


class Slurm(Engine):
    """Nodes that share this machine; a node is the processes below a task of a job."""

    SIZES, RESIZABLE_NODES = (1, 2, 1), 1

    def __init__(self, cluster: SlurmCluster) -> None:
        self._cluster = cluster
        self._lent = self._other = ""

    def launcher(self, *, nodes: int = 1, options: tuple[str, ...] = (), **config: object) -> SlurmLauncher:
        return SlurmLauncher(Home.from_environment(), SlurmConfig(nodes=nodes, **config), options)

    def park(self, run: Run) -> Launch:
        return self.launcher(sbatch=("--hold",)).start(run, world_size=1)

    def output(self, started: StartedRun) -> str:
        log = Path(started.launch.log)
        return log.read_text() if log.exists() else ""

    def lose(self, started: StartedRun, index: int) -> None:
        kill_all(family(supervisor(started.run, index)))

    def resize(self, started: StartedRun, number: int) -> None:
        if number == 1:
            self._cluster.call("scancel", self._lent)
            return
        command = [sys.executable, "-m", "assay", "train", "join", started.run.run_id, "--on", "slurm"]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        self._lent = output.rsplit("scancel ", 1)[1].strip()

    def drain(self, started: StartedRun, index: int) -> None:
        node = self._cluster.nodes_of(started.launch.job)[index]
        self._cluster.drain(node)
        wait_until(lambda: len(started.attempts()) > 1, "an attempt without it")
        if index:  # Slurm keeps the first node for the job's script
            wait_until(lambda: self._cluster.node_state(node) == "drained", "the job to give it up")
            assert node not in self._cluster.nodes_of(started.launch.job)

    def suspend(self, started: StartedRun) -> None:
        self._other = self._cluster.preempt(seconds=WHILE_SUSPENDED_S)
        wait_until(lambda: self._cluster.state(self._other) == "RUNNING", "the job of a higher priority")
        wait_until(lambda: state_of(started.launch) == "queued", "the requeue")

    def resume(self, started: StartedRun) -> None:
        self._cluster.call("scancel", self._other)

    def num_jobs(self, run: Run) -> int:
        return len(self._cluster.call("squeue", "--noheader", f"--name=assay-{run.run_id}").splitlines())

    def listings(self, started: StartedRun) -> str:
        job = started.launch.job
        shown = [("show", "job", "--details", job), ("show", "step"), ("write", "batch_script", job, "-")]
        texts = [self._cluster.call("scontrol", *words) for words in shown]
        return "\n".join(
            [*texts, self._cluster.call("squeue", "--format=%all"), *(line for _, line in command_lines())]
        )

    def assert_ended_well(self, started: StartedRun) -> None:
        wait_until(lambda: self._cluster.state(started.launch.job) == "COMPLETED", "Slurm to call it completed")


def supervisor(run: Run, node: int) -> int:
    """The process of a node's supervisor."""
    words = (f" {run.run_id} ", f" --node {node} ")
    return next(pid for pid, line in command_lines() if all(word in line for word in words))
