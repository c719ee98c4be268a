"""Suites asked of checkpoints: at once, or from a queue beside training."""
