"""Three releases of the official SDK, each alone in an environment, drive a job's whole life by one script."""

import json
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
import uvicorn

from assay.serving.openai.app import make_app
from assay.store.findings import saved_audit
from assay.store.launches import saved_launches
from compatibility.environment import python_with
from compatibility.page import CALLS, RELEASES
from compatibility.played_worker import PlayedWorker
from integration.test_serving import Here, rows, undisturbed_digest
from served import place_in
from variants import soaked

HERE = Path(__file__).parent
GRADED, ANSWERED = ["pass", "fail", "pass"], ["r0", "r1", "r2"]
ALONE = {"PATH": "/usr/bin:/bin"}
"""Nothing of this environment's."""


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
def played(tmp_path: Path) -> Iterator[str]:
    """The address of a server whose jobs a played worker does."""
    place = place_in(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener, PlayedWorker(place):
        server = uvicorn.Server(uvicorn.Config(make_app(place), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        server.should_exit = True
        thread.join()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_release_reads_all_that_the_script_asks_for(played: str, python: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(rows(3))
    script = [python, str(HERE / "whole_life.py"), played, "any", "tiny", "classification"]
    done = subprocess.run(
        [*script, str(tmp_path / "rows.jsonl")], input="go on\n", capture_output=True, text=True, env=ALONE
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert (seen["weights"], seen["checkpoints"]) == ("w20", [20, 15, 10, 5])
    assert (seen["graded"], seen["vectors"]) == (GRADED, ANSWERED)
    assert seen["measured_steps"] == [*range(20, 0, -1)]
    paused = [each for each in seen["messages"] if each.startswith("Paused at step ")]
    assert seen["messages"].count("Asked to pause") == len(paused) == 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("release", [RELEASES[0], *soaked(*RELEASES[1:])], scope="module")
def test_one_script_drives_a_whole_life_though_server_and_worker_are_killed(
    here: Here, python: str, release: str, tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_bytes(rows())
    server, sdk = here.serve()
    worker = here.work()
    script = [python, str(HERE / "whole_life.py"), str(sdk.base_url), "any", "tiny", "classification"]
    with subprocess.Popen(
        [*script, str(tmp_path / "rows.jsonl")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ALONE,
    ) as life:
        assert life.stdin is not None and life.stdout is not None
        assert line_of(life.stdout) == "paused"
        here.kill(server, worker)
        here.serve(port=sdk.base_url.port or 0)
        here.work()
        life.stdin.write("go on\n")
        life.stdin.flush()
        seen = json.loads(line_of(life.stdout))
    assert life.returncode == 0 and seen["openai"] == release
    run = here.home.run(seen["job"])
    assert seen["weights"] == undisturbed_digest(here, seen["job"])
    audit = saved_audit(run.run_dir)
    assert audit is not None and audit.verdict == "pass"
    assert len(saved_launches(run)) == 2  # one before the pause, one behind it
    steps = seen["measured_steps"]
    assert steps == [*range(steps[0], 0, -1)]  # each once, page by page
    assert seen["messages"].count("Fine-tuning job started") == 1
    assert (seen["graded"], seen["vectors"]) == (GRADED, ANSWERED)
    assert seen["checkpoints"] == sorted(set(seen["checkpoints"]), reverse=True)


def line_of(output: IO[str]) -> str:
    """The next line, which a script that failed never says."""
    line = output.readline().strip()
    assert line, "the script ended; what went wrong stands above"
    return line
