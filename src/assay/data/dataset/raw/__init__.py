"""Reads raw rows from source files, one span at a time."""
