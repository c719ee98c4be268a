"""Adopt or build a dataset, describe it, split it, read its row groups."""
