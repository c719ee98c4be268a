"""When the fork server imported the ranks' modules: set by `preload`, read by the forked ranks."""

began_s: float | None = None
"""Start on the monotonic clock; None in a process that was not forked from the server."""
ended_s: float | None = None
"""End on the monotonic clock."""
