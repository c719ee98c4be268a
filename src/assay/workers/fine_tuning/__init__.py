"""How a worker processes a fine-tuning job: dataset, run, launch, and entries of the job's log."""
