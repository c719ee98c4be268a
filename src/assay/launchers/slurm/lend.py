"""Lends nodes of a Slurm cluster to a run that is led on another: each is a small job of its own.

    assay join RUN --on slurm --nodes 3  ->  an array of three jobs of one node  ->  srun assay join RUN

So each starts as soon as there is a node for it, and goes by itself. One that is preempted, out of time or on a
node that is drained has the run commit, leaves, and goes back into the queue; when the run is over, it is.
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
# Lends a node to run {run_id} until it is over. Written by 'assay join --on slurm'; sbatch takes it as it is.
{directives}

export ASSAY_HOME={home}

srun --cpus-per-task="${{SLURM_CPUS_PER_TASK:-1}}" {command}
code=$?
{ending}
exit $code
"""


def lend_script(home: Home, run: Run, config: SlurmConfig) -> str:
    """The script that sbatch is given; `ConfigError` for a run that takes in no nodes now."""
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
        command=shell_line(assay_program(), "join", run.run_id, "--lent"),
        ending=REQUEUE if config.requeue else "",
    )


def lend(home: Home, run: Run, config: SlurmConfig) -> str:
    """Submit it; Slurm's number for the array of jobs."""
    script = lend_script(home, run, config)
    folder = slurm_folder(run)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "join.sh").write_text(script)
    return run_slurm("sbatch", "--parsable", str(folder / "join.sh")).strip().partition(";")[0]
