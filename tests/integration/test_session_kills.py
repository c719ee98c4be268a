"""Kill -9 of server and worker during loops of the official SDK: the client sees what it sees undisturbed."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import pytest

from served import write_models
from tinker_judge.judge import LOOPS, ONCE, PATHS, Judge, table
from tinker_judge.proxy import Fault

pytestmark = pytest.mark.slow
LEASE_S = 2


class Killable:
    """A command that runs until it is killed, and begins again after that."""

    def __init__(self, arguments: list[str], home: Path) -> None:
        self.num_kills = 0
        self._arguments = [sys.executable, "-m", "assay", *arguments]
        self._environment = {**os.environ, "ASSAY_HOME": str(home), "OMP_NUM_THREADS": "1"}
        self._log = home.parent / f"{arguments[-1]}.log"
        self.start()

    def start(self) -> None:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(self._arguments, env=self._environment, stdout=log, stderr=log)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Stop it, and wait until it is gone."""
        self._process.send_signal(number)
        self._process.wait()

    def kill_and_start(self) -> None:
        """Kill -9, and start again."""
        self.kill()
        self.num_kills += 1
        self.start()


class Service:
    """A server and a worker."""

    def __init__(self, folder: Path) -> None:
        models, self.home = write_models(folder / "models", method="supervised"), folder / "home"
        self.home.mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.server = Killable(["serve", "--models", str(models), "--port", str(port)], self.home)
        self.worker = Killable(["serve", "sessions", "--lease", str(LEASE_S)], self.home)
        while True:  # the SDK waits up to half a minute for a server that is not there yet
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)


@pytest.fixture
def service(requires, tmp_path: Path) -> Iterator[Service]:
    requires("sdks", find_spec("tinker") is not None, "the tinker SDK is not installed")
    requires("peft", find_spec("peft") is not None, "peft is not installed")
    service = Service(tmp_path)
    try:
        yield service
    finally:
        for part in (service.worker, service.server):
            part.kill(signal.SIGTERM)


def judge_kills(service: Service, loop: str, faults: list[Fault]) -> None:
    """Assert that the client sees, and the worker stores, what they do undisturbed."""

    def kill_worker_and_server() -> None:
        service.worker.kill_and_start()
        service.server.kill_and_start()

    callbacks = {
        "kill worker": service.worker.kill_and_start,
        "kill server": service.server.kill_and_start,
        "kill both": kill_worker_and_server,
    }
    with Judge(service.url, base="tiny").sitting(callbacks) as judge:
        verdicts = [judge(loop, fault) for fault in faults]
    assert [item.verdict for item in verdicts] == ["held"] * len(faults), table(verdicts)
    assert service.worker.num_kills + service.server.num_kills >= len(faults)
    service.worker.kill(signal.SIGTERM)
    sessions = newest_states(service.home / "api" / "session-data")
    assert len(sessions) == 1 + len(faults)
    assert all(states == sessions[0] for states in sessions), sessions


@pytest.mark.parametrize(
    "loop, faults",
    [
        ("sft", [Fault("kill worker", "optim_step", 3), Fault("kill server", "forward_backward", 5)]),
        ("rl", [Fault("kill worker", "asample", 3), Fault("kill server", "save_weights_for_sampler", 2)]),
        ("dpo", [Fault("kill worker", "forward_backward", 4), Fault("kill both", "optim_step", 2)]),
    ],
)
def test_a_client_cannot_tell_that_server_and_worker_were_killed(service, loop, faults) -> None:
    judge_kills(service, loop, faults)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(20))
def test_a_hundred_kills_at_random(service, seed) -> None:
    draw = random.Random(seed)
    loop = LOOPS[seed % len(LOOPS)]
    faults = []
    for _ in range(5):
        path = draw.choice(PATHS[loop])
        number = 1 if path in ONCE else draw.randint(1, 4)
        faults.append(Fault(draw.choice(["kill worker", "kill server", "kill both"]), path, number))
    judge_kills(service, loop, faults)


def newest_states(folder: Path) -> list[dict[str, str]]:
    """Of each session: the digest of each model's last stored state, weights and moments, and of what it saved."""
    found = []
    for session in folder.iterdir():
        saved = [
            file for kind in ("training", "sampler", "captured") for file in sorted(session.glob(f"train/*/{kind}/*"))
        ]
        files = [*sorted(session.glob("train/*/commits/*"))[-1:], *saved]
        digests = {str(file.relative_to(session)): sha256(file.read_bytes()).hexdigest() for file in files}
        assert any("/commits/" in name for name in digests), "SIGTERM stored nothing"
        found.append(digests)
    return found
