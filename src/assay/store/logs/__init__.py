"""Logs of entries that are put only if absent: one entry, and things whose state is a fold of theirs."""
