"""Starts a process that nobody waits for: it has a session of its own, and no terminal."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def start_detached(command: Sequence[str], environment: Mapping[str, str], *, log: Path) -> None:
    """What it prints goes to `log`; where it cannot be started, that is said, and all goes on."""
    try:
        with log.open("ab") as out:
            # A shell that leaves at once: so it is no child of ours, whose end somebody has to wait for.
            subprocess.run(
                ["/bin/sh", "-c", '"$@" &', "sh", *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **environment},
                start_new_session=True,
                check=False,
            )
    except (OSError, ValueError) as error:
        print(f"{command[0]} was not started: {error}", file=sys.stderr)
