"""`python -m assay.api` is `assay` for a Python program that waits for it and holds its stdin open.

It usually has a process group of its own, so that Ctrl-C reaches it once, through the program. If the program is
killed, stdin ends, and the command stops as after SIGTERM: a run commits first.
"""

import os
import signal
import threading

from assay.cli.main import main


def _stop_without_caller() -> None:
    os.read(0, 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nobody reads progress any more, and writing it would fail
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGTERM)
    else:
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_stop_without_caller, daemon=True).start()
    main()
