"""Where the jobs of `assay data` run: in this process, in local processes, or on the workers of Spark or Ray."""
