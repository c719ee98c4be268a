"""`assay serve` as a process of its own, which tests may stop, kill and start again at the same port."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

_COMMAND = [sys.executable, "-c", "from assay.cli.main import main; main()", "serve"]

START_S = 60.0


class DashboardServer:
    """A server over a home; its log is in a file."""

    def __init__(self, home: Path, log: Path) -> None:
        self.home = home
        self.port = 0
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start at the port that it had before, and return once it answers."""
        environment = {**os.environ, "ASSAY_HOME": str(self.home)}
        environment.pop("ASSAY_LEDGER", None)
        began = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("a") as log:
            self._process = subprocess.Popen([*_COMMAND, "--port", str(self.port)], stderr=log, env=environment)
        deadline_s = time.monotonic() + START_S
        while (found := re.search(r"dashboard \S+:(\d+)", self._log.read_text()[began:])) is None:
            assert self._process.poll() is None and time.monotonic() < deadline_s, self._log.read_text()
            time.sleep(0.05)
        self.port = int(found[1])

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stderr is not None:
                self._process.stderr.close()

    def interrupt(self, *, timeout_s: float) -> int:
        """Send Ctrl-C, and return the exit code. Raises `TimeoutExpired` if it goes on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(timeout_s)

    def cpu_s(self) -> float:
        """Return the CPU time of the process so far."""
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
