"""Runs the command of a node, and ends it when the Ray worker or the raylet above it ends.

    raylet --> worker (the node's actor) --> this process --> assay train --on nodes --> ranks

Ray kills a worker, not what the worker has started, and a worker may outlive its raylet. Without this process the
command would train on to the end, on a machine that the cluster has given to somebody else. It waits for the ends of
three processes at once and polls nothing. Imports only the standard library, so it starts in milliseconds.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys

GRACE_S = 30.0
"""Seconds in which the command may commit and exit once its raylet or its actor is gone."""
LEAVES = 75
"""Exit code of a command that was asked to leave before it began."""


def run(watched: list[int], command: list[str]) -> int:
    """Return the command's exit code. If a watched process ends, end the command and this process group."""
    child: subprocess.Popen[bytes] | None = None
    is_stop_requested = False

    def leave(*_: object) -> None:
        nonlocal is_stop_requested
        is_stop_requested = True
        if child is not None:
            child.terminate()

    signal.signal(signal.SIGTERM, leave)
    ends = select.poll()
    try:
        for pid in watched:
            ends.register(os.pidfd_open(pid), select.POLLIN)
    except ProcessLookupError:
        return LEAVES
    child = subprocess.Popen(command)
    if is_stop_requested:
        child.terminate()
    child_end = os.pidfd_open(child.pid)
    ends.register(child_end, select.POLLIN)
    if {descriptor for descriptor, _ in ends.poll()} != {child_end}:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_S)
        os.killpg(0, signal.SIGKILL)
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(run([int(text) for text in sys.argv[1].split(",")], sys.argv[2:]))
