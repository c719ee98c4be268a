"""Three releases of the official SDK, each alone in an environment, drive a job's whole life by one script."""

import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from assay.serving.engines.pool import EnginePool
from assay.serving.openai.app import make_app
from assay.store.launches import saved_launches
from assay.store.run_results import saved_audit
from compatibility.environment import python_with
from compatibility.page import CALLS, RELEASES
from compatibility.simulated_worker import SimulatedWorker
from integration.test_serving import Here, undisturbed_digest
from parrot_engine import ParrotEngine
from served import app_in
from served_talker import lines, rows, write_talker

HERE = Path(__file__).parent
MANNERS = ("sync", "async")
GRADED, VECTORS = ["pass", "fail", "pass"], ["r0", "r1", "r2"]
ALONE = {"PATH": "/usr/bin:/bin"}
"""Nothing of this environment's."""


class Life:
    """The script at work."""

    def __init__(self, python: str, manner: str, url: str, folder: Path) -> None:
        training = folder / f"{manner}.jsonl"
        training.write_bytes(lines(rows("supervised", 256)))
        self._script = subprocess.Popen(
            [python, str(HERE / "whole_life.py"), manner, url, "any", "talker", str(training)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ALONE,
        )  # fmt: skip

    def __enter__(self) -> "Life":
        return self

    def __exit__(self, *_: object) -> None:
        self._script.kill()
        self._script.__exit__(None, None, None)

    def next_line(self) -> str:
        """The next line, which a script that failed never says."""
        assert self._script.stdout is not None
        line = self._script.stdout.readline().strip()
        assert line, "the script ended; what went wrong stands above"
        return line

    def seen(self) -> dict[str, Any]:
        """What it saw, once it has gone on to its end."""
        found: dict[str, Any] = json.loads(self.next_line())
        assert self._script.wait() == 0
        return found

    def go_on(self) -> None:
        """Behind the pause."""
        assert self._script.stdin is not None
        self._script.stdin.write("go on\n")
        self._script.stdin.flush()


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def python(release: str, requires: Callable[[str, bool, str], None]) -> str:
    """The interpreter of an environment that holds this release, and what it needs."""
    return python_with(f"openai-{release}", requires)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    found = Here(tmp_path)
    try:
        yield found
    finally:
        found.end()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_calls_of_a_release_are_those_that_are_kept(python: str, release: str) -> None:
    """Rewrite with: build/openai-VERSION/bin/python tests/compatibility/walk.py > calls/openai-VERSION.json."""
    walked = subprocess.run([python, str(HERE / "walk.py")], capture_output=True, text=True, check=True).stdout
    assert json.loads(walked) == json.loads((CALLS / f"openai-{release}.json").read_text())


@pytest.fixture
def simulated_server(tmp_path: Path) -> Iterator[str]:
    """The address of a server whose jobs a played worker does, and whose models are parrots."""

    async def begin() -> ParrotEngine:
        return ParrotEngine()

    write_talker(tmp_path / "models")
    app = app_in(tmp_path)._replace(engines=EnginePool(begin, max_models=1), webhook_hosts=["127.0.0.1"])
    app.clock.sleep_s(time.time() - app.clock.now_s())  # a receiver refuses what is old, or of tomorrow
    with socket.create_server(("127.0.0.1", 0)) as listener, SimulatedWorker(app):
        server = uvicorn.Server(uvicorn.Config(make_app(app), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        server.should_exit = True
        thread.join()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("manner", MANNERS)
def test_a_release_reads_all_that_the_script_asks_for(
    simulated_server: str, python: str, manner: str, tmp_path: Path
) -> None:
    with Life(python, manner, simulated_server, tmp_path) as life:
        assert life.next_line() == "paused"
        life.go_on()
        seen = life.seen()
    assert (seen["weights"], seen["checkpoints"]) == ("w20", [20, 15, 10, 5])
    assert (seen["graded"], seen["vectors"]) == (GRADED, VECTORS)
    assert seen["said"] == " ALPHA BETA GAMMA DELTA"
    assert seen["measured_steps"] == [*range(20, 0, -1)]
    paused = [item for item in seen["messages"] if item.startswith("Paused at step ")]
    assert seen["messages"].count("Pause requested") == len(paused) == 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("release", "manners"),
    [(RELEASES[0], MANNERS[1:]), *(pytest.param(item, MANNERS, marks=pytest.mark.soak) for item in RELEASES)],
)
def test_one_script_drives_whole_lives_though_server_and_worker_are_killed(
    here: Here, release: str, manners: Sequence[str], requires: Callable[[str, bool, str], None], tmp_path: Path
) -> None:
    """Two at once, one by each of the SDK's clients; their rows and their weights are the same."""
    python = python_with(f"openai-{release}", requires)
    write_talker(here.models)
    here.home.folder.mkdir(parents=True, exist_ok=True)
    (here.home.folder / "settings.yaml").write_text("webhook_hosts: [127.0.0.1]\n")
    server, sdk = here.serve()
    worker = here.work("--runs-at-once", "2")
    with ExitStack() as living:
        lives = [living.enter_context(Life(python, manner, str(sdk.base_url), tmp_path)) for manner in manners]
        assert {life.next_line() for life in lives} == {"paused"}
        here.kill(server, worker)
        here.serve(port=sdk.base_url.port or 0)
        here.work("--runs-at-once", "2")
        for life in lives:
            life.go_on()
        ends = [life.seen() for life in lives]
    digest = undisturbed_digest(here, ends[0]["job"])
    for seen in ends:
        assert seen["openai"] == release and seen["weights"] == digest
        run = here.home.run(seen["job"])
        audit = saved_audit(run.run_dir)
        assert audit is not None and audit.verdict == "pass"
        assert len(saved_launches(run)) == 2  # one before the pause, one behind it
        steps = seen["measured_steps"]
        assert steps == [*range(steps[0], 0, -1)]  # each once, page by page
        assert seen["messages"].count("Fine-tuning job started") == 1
        assert (seen["graded"], seen["vectors"]) == (GRADED, VECTORS)
        assert seen["checkpoints"] == sorted(set(seen["checkpoints"]), reverse=True)
    assert len({seen["said"] for seen in ends}) == 1
