"""A ledger that hangs stands in nobody's way: real databases that are locked, stopped, or never answer."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.store.attempts import saved_attempts
from assay.store.home import Home
from assay.store.ledger.ledger import open_ledger
from assay.store.ledger.writer import missed_subjects
from ledger_rows import drop_tables
from slurm_cluster import wait_until
from variants import soaked

AFTER_COMMIT_S = 5.0
HOLD = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None); db.execute('{begin}'); "
HOLD += "print('held', flush=True); sys.stdin.read()"

Hang = Callable[[], AbstractContextManager[object]]


@contextmanager
def held(path: Path) -> Iterator[None]:
    """A SQLite file in whose way another process stands."""
    command = [sys.executable, "-c", HOLD.format(begin="BEGIN EXCLUSIVE"), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        yield
        holder.kill()


@contextmanager
def stopped(url: str) -> Iterator[None]:
    """A PostgreSQL whose processes stand still: the kernel accepts connections for it, nobody answers."""
    cluster = Path(url.partition("host=")[2]).parent / "cluster"
    postmaster = (cluster / "postmaster.pid").read_text().split()[0]
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    for pid in (postmaster, *children):
        os.kill(int(pid), signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in (postmaster, *children):
            os.kill(int(pid), signal.SIGCONT)


@pytest.fixture
def silent_url() -> Iterator[str]:
    """Something that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"postgresql://assay@127.0.0.1:{listener.getsockname()[1]}/postgres"


class Assay:
    """The command in a home of its own, with one ledger."""

    def __init__(self, folder: Path, tree: dict[str, Any], ledger: str) -> None:
        self.home = Home.at(folder / "home", ledger)
        self._environment = {**os.environ, **self.home.environment()}
        tree = {**tree, "trainer": {**tree["trainer"], "epochs": 500, "commit_every": 10}}
        self._recipe = folder / "recipe.yaml"
        self._recipe.write_text(yaml.safe_dump(tree))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "assay", *arguments]
        return subprocess.Popen(
            command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def train(self) -> subprocess.Popen[str]:
        return self.start("train", str(self._recipe), "--run-id", "r", "--workers", "2")

    def steps(self) -> int:
        """Of the last commit."""
        folders = (self.home.folder / "r" / "checkpoints").glob("0*")
        return max((int(folder.name.partition("-")[0]) for folder in folders), default=0)


def kill_a_rank(supervisor: int) -> None:
    """The newest child of the server that ranks are forked from."""

    def children(pid: int) -> list[int]:
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    for pid in children(supervisor):
        if b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(max(children(pid)), signal.SIGKILL)


@pytest.fixture
def server_url(postgres_url: str) -> Iterator[str]:
    """A PostgreSQL without tables of ours, before and after."""
    yield postgres_url
    drop_tables(postgres_url)


def lives_through(assay: Assay, hang: Hang, *, from_the_start: bool) -> str:
    """Train; the ledger hangs, a rank dies, SIGTERM. Returns what the command said."""
    run_dir = assay.home.folder / "r"
    if from_the_start:
        with hang():
            return _killed_and_stopped(assay, assay.train(), run_dir)
    training = assay.train()
    wait_until(lambda: assay.steps() >= 10, "a first commit")
    with hang():
        return _killed_and_stopped(assay, training, run_dir)


def _killed_and_stopped(assay: Assay, training: subprocess.Popen[str], run_dir: Path) -> str:
    wait_until(lambda: assay.steps() >= 10 or training.poll() is not None, "a first commit")
    assert training.poll() is None, training.communicate()
    time.sleep(3.0)  # by now the ledger was written to
    kill_a_rank(training.pid)
    wait_until(lambda: len(saved_attempts(run_dir)) == 2, "a second attempt")
    first, second = saved_attempts(run_dir)
    assert first.outcome == "killed" and first.ended_s is not None
    assert second.started_s - first.ended_s < 2.0
    before = assay.steps()
    wait_until(lambda: assay.steps() > before, "a commit of the second attempt")
    training.send_signal(signal.SIGTERM)
    assert training.stdout is not None
    word = training.stdout.readline()
    left_s = time.time()
    _, err = training.communicate(timeout=100)
    last = saved_attempts(run_dir)[-1]
    assert (training.returncode, "stopped at step" in word) == (0, True), err
    assert last.outcome == "preempted" and last.ended_s is not None
    # To its last word: what an interpreter needs to end, a second, is many on a machine that runs other tests.
    assert left_s - last.ended_s < AFTER_COMMIT_S - 1.0, err
    assert time.time() - left_s < 30.0
    return err


def is_all_on_record(assay: Assay) -> None:
    """Any command that opens the ledger, once it is back, writes down what it missed."""
    assert list(missed_subjects(assay.home)) == ["r"]
    listing = assay.start("runs", "--json")
    out, err = listing.communicate(timeout=60)
    assert listing.returncode == 0, err
    assert [line["run_id"] for line in json.loads(out)] == ["r"]
    with assay.home.open_ledger() as ledger:
        assert ledger.attempts("r") == saved_attempts(assay.home.folder / "r")
        assert {second.attempt for second in ledger.phase_seconds("r")} == {1, 2}
    assert not missed_subjects(assay.home)


@pytest.mark.slow
@pytest.mark.parametrize("from_the_start", [True, *soaked(False)])
def test_a_locked_ledger_stops_neither_restart_nor_leave(tmp_path, tiny_recipe_tree, from_the_start) -> None:
    path = tmp_path / "ledger.db"
    open_ledger(f"sqlite:///{path}").close()
    assay = Assay(tmp_path, tiny_recipe_tree, f"sqlite:///{path}")
    output = lives_through(assay, lambda: held(path), from_the_start=from_the_start)
    if from_the_start:
        assert "work goes on without it" in output and "database is locked" in output
    else:  # or it left before the lock had been waited for
        assert "database is locked" in output or "the ledger does not answer" in output
    is_all_on_record(assay)


@pytest.mark.slow
@pytest.mark.parametrize("from_the_start", [True, *soaked(False)])
def test_a_stopped_server_stops_neither_restart_nor_leave(
    tmp_path, tiny_recipe_tree, server_url, from_the_start
) -> None:
    assay = Assay(tmp_path, tiny_recipe_tree, server_url)
    lives_through(assay, lambda: stopped(server_url), from_the_start=from_the_start)
    is_all_on_record(assay)


@pytest.mark.slow
def test_a_listener_that_says_nothing_stops_neither_restart_nor_leave(tmp_path, tiny_recipe_tree, silent_url) -> None:
    assay = Assay(tmp_path, tiny_recipe_tree, silent_url)
    output = lives_through(assay, nullcontext, from_the_start=True)
    assert "Something accepts connections there and says nothing" in output
    assert list(missed_subjects(assay.home)) == ["r"]
    reading = assay.start("runs")
    began_s = time.monotonic()
    _, err = reading.communicate(timeout=60)
    assert time.monotonic() - began_s < 12 and reading.returncode == 75
    assert err.startswith("error: ledger postgresql") and err.count("\n") == 1
