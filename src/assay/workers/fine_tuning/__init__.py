"""What a worker does with a fine-tuning job: dataset, run, launch, and what it says of them in the job's
log."""
