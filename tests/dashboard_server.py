"""`assay serve` as a process of its own, which tests may stop, kill and start again at the same port."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

_COMMAND = [sys.executable, "-c", "from assay.cli.main import main; main()", "serve"]


class DashboardServer:
    """A server over a home; its log is in a file."""

    def __init__(self, home: Path, log: Path) -> None:
        self.home = home
        self.port = 0
        self._log = log
        self._process: subprocess.Popen[str] | None = None

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
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*_COMMAND, "--port", str(self.port)], stdout=log, stderr=subprocess.PIPE, text=True, env=environment
            )
        assert self._process.stderr is not None
        said = ""
        while (found := re.search(r"dashboard \S+:(\d+)", said)) is None:
            line = self._process.stderr.readline()
            assert line, f"the server did not start: {said}"
            said += line
        self.port = int(found[1])

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

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
