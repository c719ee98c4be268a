"""`python -m assay.api` is `assay` for a Python program that waits for it and holds its stdin open.

It usually has a process group of its own, so that Ctrl-C reaches it once, through the program. If the program is
killed, stdin ends, and the command stops as after SIGTERM: a run commits first.
"""

import io
import os
import signal
import sys
import threading
from contextlib import suppress

from assay.cli.main import main


class _Progress(io.TextIOWrapper):
    """Writes to a program that may be gone."""

    def write(self, text: str) -> int:
        with suppress(BrokenPipeError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(BrokenPipeError):
            super().flush()


def _stop_without_caller() -> None:
    os.read(0, 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nor do ranks write to who is gone
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGTERM)
    else:
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.stderr = _Progress(sys.stderr.buffer, sys.stderr.encoding, "backslashreplace", line_buffering=True)
    threading.Thread(target=_stop_without_caller, daemon=True).start()
    main()
