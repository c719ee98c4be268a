"""Kill -9 of ranks, and of workers each with another number of ranks: the client and the states do not show it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path

import pytest

from served import write_models
from tinker_judge.judge import Judge, table
from tinker_judge.proxy import Fault

WORLD_SIZES = (2, 5, 1, 4, 3)
FAULTS = {
    "sft": ["optim_step", "forward_backward"],
    "rl": ["asample", "save_weights_for_sampler"],
    "dpo": ["forward_backward"],
}
"""Loop -> what a worker executes while it is killed, and then its rank."""


class RankedWorker:
    """`assay serve sessions`, with the next number of ranks at each start."""

    def __init__(self, home: Path) -> None:
        self._world_sizes = cycle(WORLD_SIZES)
        self._environment = {**os.environ, "ASSAY_HOME": str(home), "OMP_NUM_THREADS": "1"}
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "assay", "serve", "sessions", "--lease", "2"]
        self.process = subprocess.Popen(
            [*command, "--workers", str(next(self._world_sizes))], env=self._environment, stderr=subprocess.DEVNULL
        )

    def kill_and_start(self) -> None:
        self.process.kill()
        self.process.wait()
        self.start()

    def kill_rank(self) -> None:
        """Kill the rank that was started last; its fork server is a child of the worker."""
        while not (ranks := [rank for child in children_of(self.process.pid) for rank in children_of(child)]):
            time.sleep(0.1)
        os.kill(max(ranks), signal.SIGKILL)

    def stop(self) -> None:
        """Let it store its models."""
        self.process.terminate()
        assert self.process.wait() == 0


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def url(requires, tmp_path: Path) -> Iterator[str]:
    requires("sdks", find_spec("tinker") is not None, "the tinker SDK is not installed")
    requires("peft", find_spec("peft") is not None, "peft is not installed")
    models = write_models(tmp_path / "models", method="supervised")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "assay", "serve", "--models", str(models), "--port", str(port)]
    environment = {**os.environ, "ASSAY_HOME": str(tmp_path / "home")}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as server:
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
        server.terminate()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("loop", FAULTS)
def test_a_client_cannot_tell_that_ranks_were_killed_and_that_their_number_changed(url, loop, tmp_path) -> None:
    worker = RankedWorker(tmp_path / "home")
    callbacks = {"kill worker": worker.kill_and_start, "kill rank": worker.kill_rank}
    faults = [Fault(kind, path, 2) for path in FAULTS[loop] for kind in callbacks]
    with Judge(url, base="tiny").sitting(callbacks) as judge:
        verdicts = [judge(loop, fault) for fault in faults]
    worker.stop()
    assert [item.verdict for item in verdicts] == ["held"] * len(faults), table(verdicts)
    sessions = [states_of(session) for session in (tmp_path / "home" / "api" / "session-data").iterdir()]
    assert len(sessions) == 1 + len(faults) and sessions == [sessions[0]] * len(sessions)


def states_of(session: Path) -> dict[str, str]:
    """Digest of the last state of each model, with weights and moments, and of all that it saved."""
    last = [max(model.glob("commits/*")) for model in session.glob("train/*")]
    saved = [file for kind in ("training", "sampler", "captured") for file in session.glob(f"train/*/{kind}/*")]
    assert last, "the worker stored nothing"
    return {str(file.relative_to(session)): sha256(file.read_bytes()).hexdigest() for file in [*last, *saved]}
