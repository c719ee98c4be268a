"""Polls a scheduler while a run trains."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from assay.base.errors import AssayError, ConfigError


@contextmanager
def polling(poll: Callable[[threading.Event], None], *, every_s: float, name: str) -> Iterator[None]:
    """Call `poll` again and again during the body, in a thread: a scheduler that does not respond blocks nothing.

    Its argument is set once the body is over. A `ConfigError` ends the calls; other errors do not.
    """
    is_over = threading.Event()

    def run() -> None:
        # SIGTERM must reach the main thread, which may block it for a while.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        while not is_over.wait(every_s):
            try:
                poll(is_over)
            except ConfigError as error:
                print(f"the {name} ends: {error}", file=sys.stderr)
                return
            except (AssayError, OSError, ValueError):
                continue

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
