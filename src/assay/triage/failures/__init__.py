"""Finds why attempts fail: which factors failures have in common, and whether a fix worked."""
