"""A real Slurm on this machine: munged, slurmctld and a slurmd per virtual node, configured for itself.

Two partitions over the same nodes: `low`, which is the default, and `high`, which preempts it with REQUEUE.
Needs Debian's packages munge, slurmctld, slurmd and slurm-client, whose build lets several slurmd share a host.
"""

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "squeue", "scontrol")
NUM_NODES = 2


def missing_program() -> str | None:
    """The first program that is not installed."""
    return next((name for name in PROGRAMS if _program(name) is None), None)


class SlurmCluster:
    """Starts the daemons; `environment` is what Slurm's commands need to find them."""

    def __init__(self, num_nodes: int = NUM_NODES) -> None:
        self._num_nodes = num_nodes
        self._folder = Path(tempfile.mkdtemp(prefix="assay-slurm-"))  # short: it holds a socket
        self.environment = {"SLURM_CONF": str(self._folder / "slurm.conf")}

    def start(self) -> None:
        """Return when all nodes are idle."""
        (self._folder / "state").mkdir()
        (self._folder / "slurm.conf").write_text(_configuration(self._folder, self._num_nodes))
        key = self._folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        munge = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munge.pid"}
        munge |= {"log-file": "munge.log", "seed-file": "munge.seed"}
        self.call("munged", "--force", *(f"--{name}={self._folder / file}" for name, file in munge.items()))
        self.call("slurmctld", "-c")
        for node in range(1, self._num_nodes + 1):
            self.call("slurmd", "-N", f"n{node}")
        idle = f"idle {self._num_nodes}"
        wait_until(lambda: self.call("sinfo", "-hp", "low", "-o", "%T %D") == idle, "idle nodes")

    @property
    def completions(self) -> Path:
        """What Slurm wrote down of jobs that are over, a line each."""
        return self._folder / "jobs.log"

    def call(self, program: str, *arguments: str) -> str:
        """What one of Slurm's programs prints."""
        done = subprocess.run(
            [_program(program) or program, *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, **self.environment},
        )
        assert done.returncode == 0, f"{program} {arguments}: {done.stderr}\n{self.logs()}"
        return done.stdout.strip()

    def preempt(self, seconds: float) -> str:
        """Submit a job of a higher priority that wants all nodes to itself for a while; its number."""
        options = ("--partition=high", f"--nodes={self._num_nodes}", "--exclusive", "--output=/dev/null")
        return self.call("sbatch", "--parsable", *options, "--wrap", f"sleep {seconds}")

    def state(self, job: str) -> str:
        """Slurm's word for the state of a job."""
        words = self.call("scontrol", "show", "job", job).split()
        return next(word.partition("=")[2] for word in words if word.startswith("JobState="))

    def nodes_of(self, job: str) -> list[str]:
        """The nodes that a job holds."""
        held = self.call("squeue", "--noheader", f"--jobs={job}", "--format=%N")
        return self.call("scontrol", "show", "hostnames", held).split()

    def node_state(self, node: str) -> str:
        """Slurm's word for the state of a node."""
        return self.call("sinfo", "--noheader", "--partition=low", f"--nodes={node}", "--format=%T")

    def drain(self, nodes: str) -> None:
        """Give nodes no further jobs, as an administrator does."""
        self.call("scontrol", "update", f"NodeName={nodes}", "State=DRAIN", "Reason=test")

    def undrain(self) -> None:
        """Give all nodes jobs again."""
        for node in (f"n{number}" for number in range(1, self._num_nodes + 1)):
            if self.node_state(node).startswith("drain"):
                self.call("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def logs(self) -> str:
        """The daemons' last lines, for a person."""
        files = sorted(self._folder.glob("*.log"))
        return "\n".join(f"{file.name}: {line}" for file in files for line in _last_lines(file))

    def stop(self) -> None:
        """End all jobs, then the daemons."""
        with contextlib.suppress(AssertionError):
            self.call("scancel", "--full", "--signal=KILL", "--user", getpass.getuser())
            self.call("scancel", "--user", getpass.getuser())
            wait_until(lambda: not self.call("squeue", "-h"), "all jobs to end", timeout_s=15)
        _end_all(sorted(self._folder.glob("*.pid"), reverse=True))
        shutil.rmtree(self._folder, ignore_errors=True)


def wait_until(is_so: Callable[[], object], what: str, timeout_s: float = 120.0) -> None:
    """Poll; fails after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s, f"waited {timeout_s:.0f} s for {what}"
        time.sleep(0.1)


def _configuration(folder: Path, num_nodes: int) -> str:
    """A requeued job waits for `cred_expire` seconds; Slurm takes no less than 5.

    The nodes of a job meet at a port by its number: clusters of two test processes count from different ones.
    """
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    control, *nodes = _free_ports(1 + num_nodes)
    names = "\n".join(
        f"NodeName=n{number} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=1000"
        for number, port in enumerate(nodes, start=1)
    )
    return f"""\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={control}
FirstJobId={1 + 1_000 * process}
SlurmUser={getpass.getuser()}
SlurmdUser={getpass.getuser()}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobs.log
SwitchType=switch/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
KillWait=30
{names}
PartitionName=low Nodes=n[1-{num_nodes}] Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=high Nodes=n[1-{num_nodes}] PriorityTier=10 PreemptMode=OFF
"""


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [server.getsockname()[1] for server in servers]


def _program(name: str) -> str | None:
    """The daemons lie where a person's PATH may not lead."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _last_lines(file: Path) -> list[str]:
    return file.read_text(errors="replace").splitlines()[-5:]


def _end_all(pid_files: list[Path]) -> None:
    pids = [int(file.read_text()) for file in pid_files]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not any(Path("/proc", str(pid)).exists() for pid in pids), "the daemons to end")
