"""Starts a run as a Slurm job: writes a readable script and submits it with sbatch.

    sbatch job.sh --> srun, one task per node --> 'assay train --resume RUN --on nodes' on each
                                                     | SIGTERM: preempted, or the time limit is near
    queued again <-- scontrol requeue <-- code 75 <--+ commit, exit

Slurm treats a job that exits as completed, even within the grace time of a preemption. So the script requeues itself
if the run was stopped before its end. If a node fails, Slurm requeues the job (`--requeue`) and the run resumes from
the last commit. In both cases it is the same job, the same run and the next attempt.
"""

import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pydantic import PositiveInt, field_validator

from assay.base.errors import ConfigError, NotInstalledError, TrainingError
from assay.base.names import shell_line
from assay.elastic.nodes.connection import STOPPED_EARLY, link_key
from assay.launchers.guards import hosts_left_out
from assay.launchers.launcher import LaunchState, SchedulerConfig, SchedulerLauncher, assay_program, resume_command
from assay.records.launch import Launch
from assay.records.run import Run
from assay.store.home import Home
from assay.store.launches import save_launch, saved_launches
from assay.store.run_results import AUDIT_FILE
from assay.training.recipe import recipe_of

WAIT_FOR_NODES_S = 300
"""Seconds that a job waits for its nodes before it goes back into the queue, because Slurm replaces no lost node."""
FINISHED_LOOK_S = 60
"""Seconds between looks whether the run has finished, and the same for srun to notice it."""
TERMINATED = 128 + 15
"""srun's exit code if SIGTERM arrived before the supervisor handled it: no attempt has begun."""

_ACTIVE = ("CONFIGURING", "RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED")


class SlurmConfig(SchedulerConfig):
    """Slurm options of a job."""

    partition: str | None = None
    """Partition; None for the cluster's default."""
    time: str | None = None
    """Time limit in sbatch's format, e.g. `12:00:00` or `2-0`; None for the partition's. A longer run continues
    when the requeued job runs again."""
    grace_s: PositiveInt = 120
    """Seconds before the time limit at which the run is asked to commit and exit. For a preemption, the
    partition's GraceTime applies."""
    requeue: bool = True
    """Requeue the job after a preemption, the time limit, or a node failure."""
    sbatch: tuple[str, ...] = ()
    """Further sbatch options, e.g. `--gpus-per-node=8`; the last of two conflicting ones counts."""

    @field_validator("sbatch")
    @classmethod
    def _are_options(cls, options: tuple[str, ...]) -> tuple[str, ...]:
        for option in options:
            if not re.match(r"--?[A-Za-z]", option) or not option.isprintable():
                raise ValueError(f"{option!r} is not an option of sbatch; write it like --gpus-per-node=8")
        return options

    @field_validator("partition", "time")
    @classmethod
    def _is_one_word(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[\w:,.-]+", value):
            raise ValueError(f"{value!r} is not one word")
        return value

    def where(self) -> list[str]:
        """Return the sbatch options for partition and time limit, if set."""
        return [
            *([f"--partition={self.partition}"] if self.partition else []),
            *([f"--time={self.time}"] if self.time else []),
        ]

    def when(self) -> list[str]:
        """Return the sbatch options for the stop signal and requeueing."""
        requeue = "--requeue" if self.requeue else "--no-requeue"
        return [f"--signal=TERM@{self.grace_s}", requeue, "--open-mode=append"]


def check(config: SlurmConfig, *, world_size: int) -> Sequence[str]:
    """Raise `ConfigError` if a node would have no rank."""
    config.size(world_size)
    return ()


def job_text(home: Home, run: Run, config: SlurmConfig, *, world_size: int, options: tuple[str, ...] = ()) -> str:
    """Return the job script; `options` are further options of `assay train`."""
    threads, per_node = recipe_of(run).trainer.threads_per_rank, config.size(world_size).workers_per_node
    node_options = ("--on", "nodes", "--workers-per-node", str(per_node), "--wait-for-nodes", str(WAIT_FOR_NODES_S))
    command = resume_command(run, world_size=world_size, options=(*node_options, *options))
    guarded = hosts_left_out(home, run, world_size=world_size)
    directives = [
        f"--job-name={_job_name(run)}",
        f"--comment={run.run_dir}",
        *config.where(),
        *([f"--exclude={','.join(guarded)}"] if guarded else []),
        f"--nodes={config.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={per_node * threads}",
        *config.when(),
        f"--output={str(slurm_folder(run)).replace('%', '%%')}/job-%j.log",
    ]
    title = f"Run {run.run_id}, from its last commit to its end. Written by 'assay train --on slurm'"
    return script_text(home, config, directives, title=title, step=_step(run, command))


def script_text(home: Home, config: SlurmConfig, directives: Sequence[str], *, title: str, step: str) -> str:
    """Return a job script that goes back into the queue if it was stopped early; `step` sets `$code`."""
    options = [*map(shell_line, directives), *config.sbatch]  # the user's own unquoted, as given
    lines = "\n".join(f"#SBATCH {option}" for option in options)
    # The home without the ledger's URL, which may hold a password: sbatch passes the environment on.
    return f"""\
#!/bin/bash
# {title}; sbatch takes it as it is.
{lines}

export ASSAY_HOME={shell_line(str(home.folder.resolve()))}

{step}
{_REQUEUE if config.requeue else ""}
exit $code
"""


def _step(run: Run, command: Sequence[str]) -> str:
    has_finished = shell_line(assay_program(), "runs", "audit", run.run_id, "--quick")
    return f"""\
# One supervisor per node starts the ranks of its node, and one of them leads.
# If a node leaves or is lost, the others keep running (--kill-on-bad-exit=0 --wait=0), also when the job releases
# the node (--no-kill). srun returns the highest code of all nodes. So that of a killed node, 137, becomes 1: it must
# not hide that others were stopped early.
srun --kill-on-bad-exit=0 --wait=0 --no-kill --cpus-per-task="${{SLURM_CPUS_PER_TASK:-1}}" \\
  bash -c 'trap : TERM; "$@" --node "$SLURM_PROCID" --lead "$SLURM_LAUNCH_NODE_IPADDR"
    code=$?; [ $code -le 128 ] || [ $code -eq {TERMINATED} ] || code=1; exit $code' node \\
  {shell_line(*command)} &
srun=$!
# If the slurmstepd of a node was killed, srun would wait for ever, even when the run has finished.
while sleep {FINISHED_LOOK_S}; do
  [ {shell_line(run.run_dir)}/{AUDIT_FILE} -nt "$0" ] && {has_finished} && sleep {FINISHED_LOOK_S} && kill -KILL $srun
done > /dev/null 2>&1 &
wait $srun
code=$?
kill $! 2> /dev/null
# Some nodes may have left or been lost before others finished the run.
if [ $code -ne 0 ] && {has_finished}; then exit 0; fi"""


_REQUEUE = f"""
# {STOPPED_EARLY}: stopped after a commit. {TERMINATED}: stopped before an attempt had begun.
if [ $code -eq {STOPPED_EARLY} ] || [ $code -eq {TERMINATED} ]; then
  scontrol requeue "$SLURM_JOB_ID" && exit 0
fi"""


class SlurmLauncher(SchedulerLauncher):
    """Submits runs to the cluster whose sbatch is in PATH. All nodes must see the folder of runs."""

    def _start(self, run: Run, world_size: int) -> Launch:
        """Submit a job; the launch's `job` is Slurm's job id."""
        job = _unrecorded_job(run) or self._submit(run, world_size)
        log = str(slurm_folder(run) / f"job-{job}.log")
        return save_launch(run, launcher="slurm", job=job, world_size=world_size, log=log)

    def _submit(self, run: Run, world_size: int) -> str:
        script = job_text(self._home, run, self._config, world_size=world_size, options=self._options)
        link_key(Path(run.run_dir), fresh=True)  # now, so that no node has to wait for it
        try:
            return submit(run, "job.sh", script)
        except TrainingError as error:
            raise TrainingError(
                f"{error}\nThe run was created but not submitted: use 'assay train --resume {run.run_id} --on slurm' "
                f"with other options, or edit {slurm_folder(run) / 'job.sh'} and submit it yourself."
            ) from error


CONFIG, LAUNCHER, check_run = SlurmConfig, SlurmLauncher, job_text


def state(launch: Launch) -> LaunchState:
    """Return the state of a job. A job that Slurm does not know has ended: it forgets jobs after minutes."""
    try:
        states = run_slurm("squeue", "--noheader", "--format=%T", f"--jobs={launch.job}").split()
    except TrainingError as error:
        if "Invalid job id" in str(error):
            return "ended"
        raise
    if not states:
        return "ended"
    return "running" if states[0] in _ACTIVE else "queued"


def pending_reason(launch: Launch) -> str:
    """Return Slurm's pending reason of a job, e.g. `Resources`; `None` if it has started meanwhile."""
    reasons = run_slurm("squeue", "--noheader", "--format=%r", f"--jobs={launch.job}").split()
    return reasons[0] if reasons else "None"


def stop(launch: Launch) -> None:
    """Cancel a job: its ranks get the cluster's KillWait to commit and exit."""
    _cancel(launch)


def kill(launch: Launch) -> None:
    """Kill the script and the ranks of a job at once; it is not requeued."""
    _cancel(launch, "--full", "--signal=KILL")


def _cancel(launch: Launch, *options: str) -> None:
    if not re.fullmatch(r"\d+(_\d+)?", launch.job):  # it comes from a file and could be an option of scancel
        raise ConfigError(f"{launch.job!r:.80} is not a Slurm job id: the run's launches/*.json were edited.")
    try:
        run_slurm("scancel", *options, launch.job)
    except TrainingError:
        if state(launch) != "ended":
            raise


def _unrecorded_job(run: Run) -> str | None:
    listed = run_slurm("squeue", "--me", "--noheader", "--format=%A|%k", f"--name={_job_name(run)}")
    known = {launch.job: launch for launch in saved_launches(run)}
    for line in listed.splitlines():
        job, _, comment = line.partition("|")
        if comment == run.run_dir and job in known:
            raise ConfigError(known[job].conflict_text())
        if comment == run.run_dir:
            return job
    return None


def _job_name(run: Run) -> str:
    return f"assay-{run.run_id}"


def slurm_folder(run: Run) -> Path:
    """Return the folder of a run's job scripts and logs."""
    return Path(run.run_dir) / "slurm"


def submit(run: Run, name: str, script: str) -> str:
    """Write a job script into the run's folder and submit it; return its Slurm job id."""
    file = slurm_folder(run) / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(script)
    return run_slurm("sbatch", "--parsable", str(file)).strip().partition(";")[0]  # sbatch may append ";CLUSTER"


def run_slurm(*command: str, folder: str | None = None) -> str:
    """Run a Slurm command, optionally in a folder; return what it prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    except FileNotFoundError as error:
        raise NotInstalledError(
            f"{command[0]}: no such program. Run this where Slurm's commands are, e.g. on a login node."
        ) from error
    if done.returncode:
        raise TrainingError(f"{shlex.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
