"""A server under clients that hold connections, hang up and ask all at once goes on answering others."""

import http.client
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from served import write_models

ASSAY = [sys.executable, "-c", "from assay.cli.main import main; main()"]
HALF_A_HEAD = b"GET /v1/files HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Unfinished: "
EXACT = {
    "type": "string_check",
    "name": "x",
    "input": "{{ sample.output_text }}",
    "reference": "a",
    "operation": "eq",
}
SLEEPS = {
    "type": "python",
    "name": "p",
    "source": "import time\ndef grade(sample, item):\n  time.sleep(300)\n  return 1.0",
}
QUICK = {"type": "python", "name": "p", "source": "def grade(sample, item):\n  return 1.0"}


class Served:
    """A server in a process of its own, with the usual limit of files."""

    def __init__(self, folder: Path) -> None:
        models = write_models(folder / "models")
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*ASSAY, "serve", "--port", "0", "--models", str(models), "--python-graders", "trusted"],
                env={**os.environ, "ASSAY_HOME": str(folder / "home")},
                stderr=log,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024)),
            )
        while "/v1" not in self.log.read_text():
            assert self.process.poll() is None
            time.sleep(0.05)
        self.port = int(self.log.read_text().split(":")[-1].removesuffix("/v1\n"))

    def connect(self, first: bytes = b"") -> socket.socket:
        found = socket.create_connection(("127.0.0.1", self.port), timeout=10.0)
        found.sendall(first)
        return found

    def timed_request(self, method: str = "GET", path: str = "/v1/files", body: object = None) -> tuple[int, float]:
        """The status, and the seconds that it took."""
        began_s = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30.0)
        connection.request(method, path, None if body is None else json.dumps(body))
        status = connection.getresponse().status
        connection.close()
        return status, time.monotonic() - began_s

    def grade(self, grader: dict) -> tuple[int, float]:
        return self.timed_request("POST", *run_of(grader))


def run_of(grader: dict) -> tuple[str, dict]:
    return "/v1/fine_tuning/alpha/graders/run", {"grader": grader, "model_sample": "a"}


def request_of(grader: dict) -> bytes:
    path, body = run_of(grader)
    text = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%s" % (
        path.encode(),
        len(text),
        text,
    )


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    found = Served(tmp_path)
    yield found
    found.process.kill()
    found.process.wait()


@pytest.mark.slow
def test_others_are_answered_within_a_second_while_clients_storm(served: Served) -> None:
    served.timed_request()
    log_bytes = served.log.stat().st_size
    half_open = [served.connect(HALF_A_HEAD) for _ in range(1200)]
    abandoned = [served.connect(request_of(SLEEPS)) for _ in range(50)]
    is_over = threading.Event()
    statuses: list[int] = []

    def request_repeatedly() -> None:
        while not is_over.wait(1.0):
            statuses.append(served.timed_request()[0])

    clients = [threading.Thread(target=request_repeatedly) for _ in range(100)]
    for client in clients:
        client.start()
    try:
        assert served.grade(EXACT) < (200, 1.0)
        for connection in abandoned:
            connection.close()
        acquired = []
        for _ in range(12):
            acquired += [served.timed_request(), served.grade(EXACT), served.grade(QUICK)]
            half_open += [served.connect(HALF_A_HEAD) for _ in range(50)]
            time.sleep(0.5)
    finally:
        is_over.set()
        for client in clients:
            client.join()
    assert {status for status, _ in acquired} == {200} == set(statuses)
    assert max(seconds for _, seconds in acquired) < 1.0
    assert served.log.stat().st_size - log_bytes < 10_000
    assert len(statuses) > 200
    for connection in half_open:
        connection.close()
