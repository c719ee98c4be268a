"""Held-out rows: which they are, and a copy of them that is read instead of the whole dataset."""
