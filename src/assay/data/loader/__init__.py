"""The deterministic row order, and the loader that yields the rows of each step."""
