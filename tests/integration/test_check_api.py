"""`assay check api` finds each planted fault of a server, alone, and passes ours."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from assay.base.errors import ConfigError, NotInstalledError
from assay.checks.api import server
from assay.checks.api.server import find_target, run_command
from served_talker import write_talker

ROOT = Path(__file__).parents[2]
MESSAGES = ("before", "within", "after", "doubled", "delayed")
KILLS = ("kill-during", "kill-after")
START_S = 120.0
LOST = ("within", "after")
"""Faults after which the client sends a request again that the server has executed."""


class Planted(NamedTuple):
    """What a fault does to which requests."""

    loop: str
    cells: dict[tuple[str, str], tuple[str, ...]]
    """(Request, fault) -> verdicts of which one is expected; all others are held."""
    may_fail: tuple[str, ...] = ()
    """Faults that strike every request, or none, as it happens."""


def again(request: str, *verdicts: str, kinds: tuple[str, ...] = (*LOST, "doubled")) -> dict:
    """Return what a request leads to that is sent again."""
    return {(request, kind): verdicts for kind in kinds}


def maybe_again(request: str, *verdicts: str) -> dict:
    """Return what a request leads to if a server dies under it: it is sent again where its response was lost."""
    return again(request, "held", *verdicts, kinds=("kill-during",))


PLANTED = {
    "none": Planted("sft", {}),
    "acknowledges_before_it_appends": Planted("sft", {("optim_step", "kill-after"): ("error",)}, KILLS),
    "executes_twice": Planted("sft", again("optim_step", "doubled") | maybe_again("optim_step", "doubled")),
    "changes_results": Planted("sft", again("forward_backward", "wrong") | maybe_again("forward_backward", "wrong")),
    "applies_chunks_as_they_arrive": Planted("sft", {("forward_backward", "delayed"): ("wrong",)}),
    "mixes_up_futures": Planted("sft", again("retrieve_future", "wrong", kinds=LOST), ("doubled",)),
    "forgets_at_restart": Planted("sft", {("optim_step", kind): ("error",) for kind in KILLS}, KILLS),
    "adds_gradients_twice": Planted(
        "sft", again("forward_backward", "doubled") | maybe_again("forward_backward", "doubled")
    ),
    "fails_after_restart": Planted("jobs", {("files", "kill-after"): ("error",)}, KILLS),
    "creates_jobs_again": Planted("jobs", again("jobs", "doubled", kinds=LOST) | maybe_again("jobs", "doubled")),
    "forgets_events": Planted("jobs", {("events", kind): ("lost",) for kind in KILLS}),
}
QUICK = {
    "executes_twice": ("after",),
    "acknowledges_before_it_appends": ("kill-after",),
    "creates_jobs_again": ("after",),
}


@pytest.fixture(autouse=True)
def sdks(requires) -> None:
    has_all = all(map(find_spec, ("tinker", "openai")))
    requires("sdks", has_all, "the SDKs tinker and openai are not installed")


@contextmanager
def faulty_server(fault: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the address of a server with a fault, and the command that kills it."""
    folder.mkdir(exist_ok=True)
    program = ROOT / "tests" / "faulty_training_api.py"
    with subprocess.Popen([sys.executable, program, fault, folder], cwd=ROOT / "tests") as process:
        try:
            while not (folder / "pid").exists():
                assert process.poll() is None, "the server did not start"
                time.sleep(0.1)
            url = f"http://127.0.0.1:{(folder / 'port').read_text()}"
            wait_for(url)
            yield url, f"kill -9 $(cat {folder / 'pid'})"
        finally:
            process.terminate()


def wait_for(url: str) -> None:
    deadline_s = time.monotonic() + START_S
    while True:
        with suppress(URLError, ConnectionError):
            urlopen(f"{url}/v1/models").close()
            return
        assert time.monotonic() < deadline_s, "the server did not start"
        time.sleep(0.1)


def check(url: str, *options: str, base: str = "tiny") -> tuple[int, dict, str]:
    command = [sys.executable, "-m", "assay", "check", "api", url, "--base", base, *options, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def cells_of(found: dict) -> dict[tuple[str, str], tuple[str, str]]:
    return {(item["request"], item["fault"]): (item["outcome"], item["seen"]) for item in found["faults"]}


def judge(fault: str, folder: Path, kinds: tuple[str, ...]) -> None:
    planted = PLANTED[fault]
    with faulty_server(fault, folder) as (url, kill):
        chosen = [text for kind in kinds for text in ("--fault", kind)]
        code, found, errors = check(url, "--loop", planted.loop, "--kill", kill, *chosen)
    assert code in (0, 1), errors
    cells = cells_of(found)
    expected = {cell: verdicts for cell, verdicts in planted.cells.items() if cell[1] in kinds}
    assert all(cells[cell][0] in verdicts for cell, verdicts in expected.items()), cells
    failed = {cell for cell, (outcome, _) in cells.items() if outcome not in ("held", "not tried")}
    assert {cell for cell in failed - {*expected} if cell[1] not in planted.may_fail} == set(), cells
    assert (code, found["verdict"]) == ((1, "fail") if failed else (0, "pass"))


@pytest.mark.slow
@pytest.mark.parametrize("fault", QUICK)
def test_a_planted_fault_is_found(fault: str, tmp_path: Path) -> None:
    judge(fault, tmp_path, QUICK[fault])


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found_alone(fault: str, tmp_path: Path) -> None:
    judge(fault, tmp_path, (*MESSAGES, *KILLS))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("loops", [("jobs",), ("sft", "rl", "dpo")], ids=" ".join)
def test_ours_holds_everything(loops: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = write_talker(tmp_path / "models", with_weights=True)
    home, port = tmp_path / "home", free_port()
    home.mkdir()
    monkeypatch.setenv("ASSAY_HOME", str(home))
    assay = [sys.executable, "-m", "assay", "serve"]
    restart = tmp_path / "restart.sh"
    restart.write_text(
        f"[ -f {tmp_path}/pid ] && kill -9 $(cat {tmp_path}/pid)\n"
        f"{' '.join(assay)} --models {models} --port {port} > {tmp_path}/log 2>&1 &\necho $! > {tmp_path}/pid\n"
    )
    subprocess.run(["sh", restart], check=True)
    url = f"http://127.0.0.1:{port}"
    workers = [subprocess.Popen([*assay, part], stderr=subprocess.DEVNULL) for part in ("worker", "sessions")]
    try:
        wait_for(url)
        page = tmp_path / "page.html"
        chosen = [text for loop in loops for text in ("--loop", loop)]
        code, found, errors = check(url, "--kill", f"sh {restart}", "--out", str(page), *chosen, base="talker")
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        for worker in workers:
            worker.terminate()
            worker.wait()
    assert (code, found.get("verdict")) == (0, "pass"), (found, errors)
    assert all(item["outcome"] == "held" or item["fault"] == "doubled" for item in found["faults"]), found
    assert len(found["faults"]) == {"jobs": 42, "sft": 98}[loops[0]]
    assert "restarts: no --restart command" in found["not_tried"] and "<title>" in page.read_text()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def answering(respond: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """Serve every request by a function."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            respond(self)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (
            404,
            "offers no training API: the Tinker API: the server answers 404 to GET /api/v1/get_server",
        ),
        (401, "refuses the key .*Give it one with --key"),
        (500, "offers no training API"),
    ],
)
def test_another_server_is_named(status: int, message: str) -> None:
    def respond(request: BaseHTTPRequestHandler) -> None:
        request.send_error(status)

    with answering(respond) as url, pytest.raises(ConfigError, match=message):
        find_target(url, "any", ())


def test_a_server_that_answers_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PROBE_S", 0.2)
    with answering(lambda _: time.sleep(1)) as url, pytest.raises(ConfigError, match="no response within"):
        find_target(url, "any", ())
    with pytest.raises(ConfigError, match=r"refused\. Start the server, or check the URL"):
        find_target(f"http://127.0.0.1:{free_port()}", "any", ())
    with pytest.raises(ConfigError, match="unknown url type"):
        find_target("localhost", "any", ())


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["sft", "jobs"])
def test_a_server_that_answers_nothing_but_the_first_question_is_named(loop: str) -> None:
    is_requested = Event()

    def respond(request: BaseHTTPRequestHandler) -> None:
        if is_requested.is_set():
            time.sleep(600)
        if request.path.endswith("jobs"):  # the second of the two questions
            is_requested.set()
        request.send_response(200)
        request.end_headers()

    with answering(respond) as url:
        code, found, errors = check(url, "--loop", loop, "--timeout", "5")
    assert (code, found) == (2, {})
    assert f"error: the loop {loop} fails without any fault: it did not end within 5 s (--timeout)" in errors


def test_a_missing_sdk_is_named_before_anything_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "find_spec", lambda name: None)

    def respond(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()

    with answering(respond) as url, pytest.raises(NotInstalledError, match=r"tinker is not installed: pip install 'as"):
        find_target(url, "any", ())


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("echo no such unit >&2; exit 5", "failed with exit code 5: no such unit. Try it alone"),
        ("sleep 60", "did not end within 1 s and was killed"),
        ("true", "did not come back within 1 s"),
    ],
)
def test_a_restart_that_fails_is_named(command: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_command("--restart", command, f"http://127.0.0.1:{free_port()}", 1.0)


@pytest.mark.slow
def test_a_restart_that_fails_ends_the_check(tmp_path: Path) -> None:
    with faulty_server("none", tmp_path) as (url, _):
        code, found, errors = check(url, "--loop", "sft", "--restart", "exit 3", "--fault", "restart-after")
        assert (code, found) == (2, {}) and "error: --restart 'exit 3' failed with exit code 3" in errors
        code, found, errors = check(url, "--loop", "sft", "--fault", "after", base="none")
        assert code == 2 and "the loop sft fails without any fault" in errors and "There is no base model" in errors
