"""Starts a run as a Slurm job: writes a script that a person can read and submits it with sbatch.

    sbatch job.sh --> srun, one task a node --> 'assay train --resume RUN --on allocation' on each
                                                     | SIGTERM: preempted, or the time limit is near
    queued again <-- scontrol requeue <-- code 75 <--+ commit, leave

Slurm takes a job that ends by itself for a job that is done, even within the grace time of a preemption; so
the script puts itself back into the queue when the run was stopped before its end. A node that dies takes no
such care: Slurm requeues the job (`--requeue`), and it goes on from the last commit. Either way it is the same
job, the same run and the next attempt.
"""

import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pydantic import PositiveInt, field_validator

from assay.base.config import FrozenConfig
from assay.base.errors import ConfigError, NotInstalledError, TrainingError
from assay.base.names import shell_line
from assay.elastic.nodes.connection import link_key
from assay.launchers.guards import hosts_left_out
from assay.launchers.launcher import LaunchState, resume_command
from assay.records.launch import Launch
from assay.records.run import Run
from assay.store.home import Home
from assay.store.launches import save_launch, saved_launches
from assay.training.recipe import recipe_of

STOPPED_EARLY = 75
"""Exit code of a supervisor on an allocation that committed and left before the end (EX_TEMPFAIL)."""
TERMINATED = 128 + 15
"""srun's exit code where SIGTERM came before the supervisor could take it: nothing was begun."""

_ACTIVE = ("CONFIGURING", "RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED")


class SlurmConfig(FrozenConfig):
    """What a job asks of Slurm."""

    nodes: PositiveInt = 1
    """One supervisor on each; the ranks are shared out evenly."""
    partition: str | None = None
    """None: the cluster's default."""
    time: str | None = None
    """Limit as sbatch reads it, e.g. `12:00:00` or `2-0`. None: the partition's. A run that needs longer goes
    on when the job, requeued, runs again."""
    grace_s: PositiveInt = 120
    """How long before the limit the run is told to commit and leave. At a preemption the partition's own
    GraceTime counts."""
    requeue: bool = True
    """Go back into the queue when preempted, out of time, or when a node dies."""
    sbatch: tuple[str, ...] = ()
    """More of sbatch's options, e.g. `--gpus-per-node=8`; the last of two that differ counts."""

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
        """Options of sbatch, as far as they were chosen."""
        return [
            *([f"--partition={self.partition}"] if self.partition else []),
            *([f"--time={self.time}"] if self.time else []),
        ]

    def when(self) -> list[str]:
        """Options of sbatch about the end of a job, and what comes then."""
        requeue = "--requeue" if self.requeue else "--no-requeue"
        return [f"--signal=TERM@{self.grace_s}", requeue, "--open-mode=append"]

    def check_world_size(self, world_size: int) -> None:
        """Raises `ConfigError` where a node would have no rank."""
        if world_size < self.nodes:
            raise ConfigError(
                f"--nodes {self.nodes} --workers {world_size}: --workers is that of all nodes together, so "
                f"some node would have none. Use --workers {self.nodes} or more, or fewer --nodes."
            )


def job_script(home: Home, run: Run, config: SlurmConfig, *, world_size: int, options: tuple[str, ...] = ()) -> str:
    """The script that sbatch is given; `options` are more of `assay train`."""
    config.check_world_size(world_size)
    threads, per_node = recipe_of(run).trainer.threads_per_rank, -(-world_size // config.nodes)
    node_options = ("--on", "allocation", "--workers-per-node", str(per_node))
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
    return _SCRIPT.format(
        run_id=run.run_id,
        directives=directives_text(directives, config),
        # Not the ledger's URL, which may hold a password: sbatch hands the environment on.
        home=shell_line(str(home.folder.resolve())),
        command=shell_line(*command),
        ending=REQUEUE if config.requeue else "",
    )


def directives_text(directives: Sequence[str], config: SlurmConfig) -> str:
    """What a script asks of sbatch. Options of the user's own are written as they are given: quoted by whoever
    knows sbatch's way."""
    return "\n".join(f"#SBATCH {text}" for text in [*map(shell_line, directives), *config.sbatch])


_SCRIPT = """\
#!/bin/bash
# Run {run_id}, from its last commit to its end. Written by 'assay train --on slurm'; sbatch takes it as it is.
{directives}

export ASSAY_HOME={home}

# One supervisor a node starts the ranks of that node; the first node's decides.
# A node that was asked to leave is done before the others, which are not ended for it (--wait=0), nor when the
# job gives it up (--no-kill).
srun --kill-on-bad-exit=1 --wait=0 --no-kill --cpus-per-task="${{SLURM_CPUS_PER_TASK:-1}}" \\
  {command}
code=$?
{ending}
exit $code
"""

REQUEUE = f"""
# {STOPPED_EARLY}: told to stop, all is committed. {TERMINATED}: told to stop before anything had begun.
if [ $code -eq {STOPPED_EARLY} ] || [ $code -eq {TERMINATED} ]; then
  scontrol requeue "$SLURM_JOB_ID" && exit 0
fi
"""


class SlurmLauncher:
    """The cluster whose sbatch is in the PATH. The runs' folder must be one that all nodes see."""

    def __init__(self, home: Home, config: SlurmConfig, options: tuple[str, ...] = ()) -> None:
        """`options`: more of `assay train`, e.g. `--max-restarts 3`."""
        self._home = home
        self._config = config
        self._options = options

    def start(self, run: Run, *, world_size: int) -> Launch:
        """Submit a job; its name is Slurm's number for it.

        A job of this run that waits or runs and is on no record was submitted by somebody who was killed before
        he could write it down: that one is taken.
        """
        job = _unrecorded_job(run) or self._submit(run, world_size)
        log = str(slurm_folder(run) / f"job-{job}.log")
        return save_launch(run, launcher="slurm", job=job, world_size=world_size, log=log)

    def _submit(self, run: Run, world_size: int) -> str:
        script = job_script(self._home, run, self._config, world_size=world_size, options=self._options)
        folder = slurm_folder(run)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "job.sh").write_text(script)
        link_key(Path(run.run_dir), anew=True)  # now, so that no node has to wait for it
        try:
            output = run_slurm("sbatch", "--parsable", str(folder / "job.sh"))
        except TrainingError as error:
            raise TrainingError(
                f"{error}\nThe run is there, and waits: 'assay train --resume {run.run_id} --on slurm' with "
                f"other options, or change {folder / 'job.sh'} and submit it yourself."
            ) from error
        return output.strip().partition(";")[0]  # the rest names the cluster, where there are several


def job_state(job: str) -> LaunchState:
    """Slurm forgets a job some minutes after its end; then it has ended, too."""
    try:
        states = run_slurm("squeue", "--noheader", "--format=%T", f"--jobs={job}").split()
    except TrainingError as error:
        if "Invalid job id" in str(error):
            return "ended"
        raise
    if not states:
        return "ended"
    return "running" if states[0] in _ACTIVE else "queued"


def pending_reason(job: str) -> str:
    """Slurm's word for what a job waits for, e.g. `Resources`; a job may have begun meanwhile."""
    reasons = run_slurm("squeue", "--noheader", "--format=%r", f"--jobs={job}").split()
    return reasons[0] if reasons else "None"


def cancel_job(job: str) -> None:
    """Its ranks have the cluster's KillWait to commit and leave."""
    run_slurm("scancel", _checked_job(job))


def kill_job(job: str) -> None:
    """Script and ranks end at once; nothing puts the job back into the queue."""
    run_slurm("scancel", "--full", "--signal=KILL", _checked_job(job))


def _checked_job(job: str) -> str:
    if not re.fullmatch(r"\d+(_\d+)?", job):  # it is read from a file, and scancel takes options
        raise ConfigError(f"{job!r:.80} is no number of a job: the run's launches/*.json were changed.")
    return job


def _unrecorded_job(run: Run) -> str | None:
    listed = run_slurm("squeue", "--me", "--noheader", "--format=%A|%k", f"--name={_job_name(run)}")
    known = {launch.job for launch in saved_launches(run)}
    for line in listed.splitlines():
        job, _, comment = line.partition("|")
        if comment == run.run_dir and job not in known:
            return job
    return None


def _job_name(run: Run) -> str:
    return f"assay-{run.run_id}"


def slurm_folder(run: Run) -> Path:
    """Scripts and logs of a run's jobs."""
    return Path(run.run_dir) / "slurm"


def run_slurm(*command: str, folder: str | None = None) -> str:
    """What one of Slurm's commands prints, called in a folder."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    except FileNotFoundError as error:
        raise NotInstalledError(
            f"{command[0]}: no such program. Run this where Slurm's commands are, e.g. on a login node."
        ) from error
    if done.returncode:
        raise TrainingError(f"{shlex.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
