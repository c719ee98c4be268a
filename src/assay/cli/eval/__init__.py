"""`assay eval`: benchmarks of checkpoints, predictions for rows, and chats."""
