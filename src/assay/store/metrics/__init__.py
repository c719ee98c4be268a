"""Millions of points: appended by ranks, folded for readers."""
