"""A process that runs loops of an SDK, one after the other, and ends with its parent."""

import json
import os
import select
import subprocess
import sys
import warnings
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any

from assay.base.errors import AssayError

POLL_S = 0.2


class LoopClient:
    """One process; it is replaced after a loop that does not end."""

    def __init__(self, module: str) -> None:
        """`module`: calls `run_loops`."""
        self._module = module
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # an SDK logs each repeat
        )

    def run(self, line: dict[str, Any], failure: Callable[[], AssayError | None]) -> dict[str, Any]:
        """Run a loop and return its output. Raises `TimeoutError`, and at once what `failure` returns."""
        timeout_s: float = line["timeout_s"]
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(line).encode() + b"\n")
        self._process.stdin.flush()
        for _ in range(round(timeout_s / POLL_S)):
            readable, _, _ = select.select([self._process.stdout], [], [], POLL_S)
            if (error := failure()) is not None:
                self._replace()
                raise error
            if readable:
                break
        else:
            self._replace()
            raise TimeoutError(f"it did not end within {timeout_s:.0f} s (--timeout)")
        if not (output := self._process.stdout.readline()):
            self._replace()
            raise AssayError(f"the process of the SDK died: python -m {self._module} says why.")
        tree: dict[str, Any] = json.loads(output)
        return tree

    def _replace(self) -> None:
        self.close()
        self._start()

    def close(self) -> None:
        """End the process."""
        with self._process as process:
            process.kill()


def run_loops(run: Callable[..., dict[str, Any]]) -> None:
    """Call `run` with each line of stdin, a JSON object of arguments, and write what it returns as a line."""
    lines = SimpleQueue[str]()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)  # the parent is gone, and an SDK would repeat its request for minutes

    warnings.simplefilter("ignore")
    Thread(target=read, daemon=True).start()
    while True:
        sys.stdout.write(json.dumps(run(**json.loads(lines.get()))) + "\n")
        sys.stdout.flush()
