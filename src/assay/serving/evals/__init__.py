"""Evals and their runs: logs, what their entries come to, and what a criterion lets pass."""
