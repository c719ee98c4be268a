"""Starts a background process with its own session and no terminal."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def start_detached(command: Sequence[str], environment: Mapping[str, str], *, log: Path) -> None:
    """Start a command that writes its output to `log`. If it cannot start, print why and return."""
    try:
        with log.open("ab") as out:
            # The shell exits at once, so the command is not our child and leaves no zombie.
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
