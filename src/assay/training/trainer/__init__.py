"""A training step and the loop around it."""
