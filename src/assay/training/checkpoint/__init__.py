"""The state of a run, made durable at once."""
