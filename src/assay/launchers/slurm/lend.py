"""Lends nodes of a Slurm cluster to a run that another machine leads. Each node is a job of an array.

    assay train join RUN --on slurm --nodes 3  ->  an array of three jobs of one node  ->  srun assay train join RUN

So each job starts as soon as a node is free, and ends by itself. If it is preempted, reaches its time limit, or its
node is drained, the run commits, and the job exits and is requeued. When the run is over, the jobs end.
"""

from pathlib import Path

from assay.base.names import shell_line
from assay.elastic.nodes.server import leader_address
from assay.launchers.launcher import assay_program
from assay.launchers.slurm.launcher import REQUEUE, SlurmConfig, directives_text, run_slurm, slurm_folder
from assay.records.run import Run
from assay.store.home import Home
from assay.training.recipe import recipe_of

_SCRIPT = """\
#!/bin/bash
# Lends a node to run {run_id} until it is over. Written by 'assay train join --on slurm'; sbatch takes it as it is.
{directives}

export ASSAY_HOME={home}

srun --cpus-per-task="${{SLURM_CPUS_PER_TASK:-1}}" {command}
code=$?
{ending}
exit $code
"""


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
    return _SCRIPT.format(
        run_id=run.run_id,
        directives=directives_text(directives, config),
        home=shell_line(str(home.folder.resolve())),
        command=shell_line(assay_program(), "train", "join", run.run_id),
        ending=REQUEUE if config.requeue else "",
    )


def lend(home: Home, run: Run, config: SlurmConfig) -> str:
    """Submit the job array; return its Slurm job id."""
    script = lend_script(home, run, config)
    folder = slurm_folder(run)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "join.sh").write_text(script)
    return run_slurm("sbatch", "--parsable", str(folder / "join.sh")).strip().partition(";")[0]
