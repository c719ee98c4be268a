"""A worker's process, and what it answers and grades beside training: runs of evals, and batches."""
