"""Compares two versions of the data, and lists the changes with causes before consequences."""
