"""Run supervisors as Slurm jobs: submit, drain, requeue, and lend nodes of an allocation."""
