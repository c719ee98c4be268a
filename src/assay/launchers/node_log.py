"""Keeps what a node prints in a file, because a cluster forgets it with the pod."""

import atexit
import contextlib
import os
import subprocess
import sys
from pathlib import Path


def keep_output(file: Path) -> None:
    """Append what this process and its children print to a file as well, from now on."""
    with contextlib.suppress(OSError):  # tee says why it cannot write, and copies on
        file.parent.mkdir(parents=True, exist_ok=True)
    originals = {number: os.dup(number) for number in (1, 2)}
    copy = subprocess.Popen(["tee", "-a", str(file)], stdin=subprocess.PIPE, start_new_session=True)
    assert copy.stdin is not None
    for number in originals:
        os.dup2(copy.stdin.fileno(), number)
    copy.stdin.close()

    def drain() -> None:
        sys.stdout.flush()
        for number, original in originals.items():
            os.dup2(original, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            copy.wait(1.0)  # the last lines are copied by then, also if a child lives on

    atexit.register(drain)
