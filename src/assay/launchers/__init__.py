"""Where runs are started: here, or on a Slurm cluster."""
