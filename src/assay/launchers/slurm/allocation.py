"""The position of a process in a Slurm allocation, from the variables that srun sets.

The leader's address is srun's, i.e. that of the first node, where the job script runs: every node can reach it, and
no host name must resolve. The port is derived from the job id, so that jobs on one node do not collide.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Self

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.elastic.nodes.group import Follower, NodeGroup
from assay.elastic.nodes.handover import Successor
from assay.elastic.supervisor import Nodes, ThisMachine
from assay.launchers.slurm.drain import JobNodes, watching_drains
from assay.records.run import Run

FIRST_PORT = 20_000
NUM_PORTS = 12_000
"""Below the ports that systems hand out by themselves (Linux: from 32768)."""


@dataclass(frozen=True)
class Allocation:
    """This process among the tasks of a job step, which has one task per node."""

    node: int
    """Index of this node; node 0 leads."""
    num_nodes: int
    leader_host: str
    """Address of node 0 for the other nodes."""
    link_port: int
    """Port on which node 0's supervisor accepts the others."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Raises `ConfigError` outside a job step, and if a node has more than one task."""
        try:
            num_tasks, num_nodes = int(environment["SLURM_NTASKS"]), int(environment["SLURM_STEP_NUM_NODES"])
            node, job = int(environment["SLURM_NODEID"]), int(environment["SLURM_JOB_ID"])
            leader_host = environment["SLURM_LAUNCH_NODE_IPADDR"]
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"--on allocation: {error} is missing or invalid in the environment that srun sets. Start it in a job "
                "with 'srun --ntasks-per-node=1 assay train ...', or let '--on slurm' write the job."
            ) from error
        if num_tasks != num_nodes:
            raise ConfigError(
                f"--on allocation: {number_of(num_tasks, 'task')} on {number_of(num_nodes, 'node')}. One "
                "supervisor per node starts all ranks of the node: use 'srun --ntasks-per-node=1', and give --workers "
                "the ranks of all nodes together."
            )
        port = int(environment.get("ASSAY_LINK_PORT") or FIRST_PORT + job % NUM_PORTS)
        return cls(node=node, num_nodes=num_nodes, leader_host=leader_host, link_port=port)


@contextmanager
def nodes_of(
    run: Run,
    allocation: Allocation,
    *,
    world_size: int,
    ranks_per_node: int | None = None,
    successor: Successor | None = None,
    job_nodes: JobNodes | None = None,
) -> Iterator[Nodes]:
    """Yield the nodes of the allocation to the leader, and tell them at the end that the run is finished.

    `ranks_per_node`: by default, the ranks are divided evenly. `successor`: set if this node takes over from a leader
    that left; it then gathers that leader's nodes.
    """
    most = ranks_per_node or -(-world_size // allocation.num_nodes)
    if allocation.num_nodes == 1 and most >= world_size:
        with watching_drains(job_nodes):
            yield ThisMachine(run)
        return
    group = NodeGroup(
        run,
        num_nodes=1 if successor else allocation.num_nodes,
        host=successor.host if successor else allocation.leader_host,
        port=successor.server.port if successor else allocation.link_port,
        ranks_per_node=most,
        clock=SystemClock(),
        successor=successor,
    )
    with closing(group), watching_drains(job_nodes, on_drained=group.mark_drained, active_nodes=group.active_nodes):
        yield group


def follow_leader(run: Run, allocation: Allocation) -> Successor | None:
    """Follow the leader until the run is over; return a `Successor` if this node becomes the leader."""
    host, port = allocation.leader_host, allocation.link_port
    return Follower(run, node=allocation.node, host=host, port=port, clock=SystemClock()).follow()
