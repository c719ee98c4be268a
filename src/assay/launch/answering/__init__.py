"""What a worker answers and grades without training: runs of evals, and batches."""
