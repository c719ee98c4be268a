"""Questions and answers, one line each, over the pipes of a child that may do with them what it likes.

Whoever waits looks after the child every so often (`LOOK_S`), however the bytes come; neither a pipe that
nobody empties nor a line that never ends holds him up. Knows nothing of what the lines say.
"""

import os
import select
import subprocess
import time
from collections.abc import Callable

MAX_REPLY_BYTES = 1 << 20
LOOK_S = 0.05
_CHUNK_BYTES = 1 << 16


class UnexpectedOutputError(Exception):
    """Bytes lie in the channel that no question asked for."""


class Channel:
    """The pipes of one child; questions are put one after another."""

    def __init__(self, child: "subprocess.Popen[bytes]") -> None:
        """Takes over the pipes that it reads from and writes to; who made the child closes them."""
        assert child.stdin is not None and child.stdout is not None
        self._in, self._out = child.stdin.fileno(), child.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(self._out, select.POLLIN)
        self._writable.register(self._in, select.POLLOUT)

    def has_output(self) -> bool:
        """The child has said something unasked, or is gone."""
        return bool(self._readable.poll(0))

    def exchange(self, question: bytes, look: Callable[[], None]) -> bytes | None:
        """The line that answers a line; None where the child ended or says no end of it.

        `look` is called while it takes time; what it raises ends the waiting. Raises `UnaskedError` where more
        than a line came.
        """
        looking = _Looking(look)
        return self._receive(looking) if self._send(question + b"\n", looking) else None

    def _send(self, line: bytes, looking: "_Looking") -> bool:
        rest = memoryview(line)
        while rest:
            try:
                rest = rest[os.write(self._in, rest) :]
            except BlockingIOError:
                self._writable.poll(LOOK_S * 1000)
                looking.now_and_then()
            except BrokenPipeError:
                return False
        return True

    def _receive(self, looking: "_Looking") -> bytes | None:
        found = bytearray()
        while b"\n" not in found:
            if len(found) > MAX_REPLY_BYTES:
                return None
            if self._readable.poll(LOOK_S * 1000):
                chunk = os.read(self._out, _CHUNK_BYTES)
                if not chunk:
                    return None
                found += chunk
            looking.now_and_then()
        line, _, more = bytes(found).partition(b"\n")
        if more:
            raise UnexpectedOutputError
        return line


class _Looking:
    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._next_s = time.monotonic() + LOOK_S

    def now_and_then(self) -> None:
        """A child that writes byte after byte is looked after, too."""
        if (now_s := time.monotonic()) >= self._next_s:
            self._look()
            self._next_s = now_s + LOOK_S
