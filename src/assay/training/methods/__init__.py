"""Batch to loss, one folder per method; independent of one another."""
