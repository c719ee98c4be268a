"""When the fork server imported what ranks need: told by it, read by the ranks that are forked from it."""

began_s: float | None = None
"""On the monotonic clock; None in a process that was not forked from the server."""
ended_s: float | None = None
"""Likewise."""
