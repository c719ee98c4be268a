"""Evals and their runs: logs, states, item schemas and testing criteria."""
