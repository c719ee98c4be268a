"""From checkpoints to evidence."""
