"""The worker process, and how it processes batches and eval runs."""
