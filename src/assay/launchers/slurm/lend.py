"""Lends nodes of a Slurm cluster to a run that another machine leads. Each node is a job of an array.

    assay train join RUN --on slurm --nodes 3  ->  an array of three jobs of one node  ->  srun assay train join RUN

So each job starts as soon as a node is free, and ends by itself. If it is preempted, reaches its time limit, or its
node is drained, the run commits, and the job exits and is requeued. When the run is over, the jobs end.
"""

from pathlib import Path

from assay.base.names import shell_line
from assay.elastic.nodes.server import leader_address
from assay.launchers.launcher import assay_program
from assay.launchers.slurm.launcher import SlurmConfig, script_text, slurm_folder, submit
from assay.records.run import Run
from assay.store.home import Home
from assay.training.recipe import recipe_of


def lend_script(home: Home, run: Run, config: SlurmConfig) -> str:
    """Return the job script; raises `ConfigError` if the run accepts no nodes now."""
    per_node = leader_address(Path(run.run_dir)).ranks_per_node
    directives = [
        f"--job-name=assay-join-{run.run_id}",
        f"--array=1-{config.nodes}",
        *config.where(),
        "--nodes=1",
        "--ntasks-per-node=1",
        f"--cpus-per-task={per_node * recipe_of(run).trainer.threads_per_rank}",
        *config.when(),
        f"--output={str(slurm_folder(run)).replace('%', '%%')}/join-%A_%a.log",
    ]
    command = shell_line(assay_program(), "train", "join", run.run_id)
    title = f"Lends a node to run {run.run_id} until it is over. Written by 'assay train join --on slurm'"
    step = f'srun --cpus-per-task="${{SLURM_CPUS_PER_TASK:-1}}" {command}\ncode=$?'
    return script_text(home, config, directives, title=title, step=step)


def lend(home: Home, run: Run, config: SlurmConfig) -> str:
    """Submit the job array; return its Slurm job id."""
    return submit(run, "join.sh", lend_script(home, run, config))
