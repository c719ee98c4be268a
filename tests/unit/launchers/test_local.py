"""Processes are known again by their boot and tick, and begin nothing before they are on record."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.base.errors import ConfigError
from assay.launchers.local import _WAIT_FOR_GO, stop
from assay.records.launch import Launch
from assay.store.launches import process_key, process_state


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def launch_of(pid: int, **changes: object) -> Launch:
    launch = Launch(
        run_id="r", number=1, launcher="background", job=str(pid), host=socket.gethostname(),
        process=process_key(pid), started_by="somebody", started_s=0.0, world_size=1, log="",
    )  # fmt: skip
    return launch.model_copy(update=changes)


def test_a_process_runs_until_it_was_stopped(sleeper: subprocess.Popen[bytes]):
    launch = launch_of(sleeper.pid)
    assert process_state(launch) == "running"
    stop(launch)
    while Path(f"/proc/{sleeper.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    assert process_state(launch) == "ended", "what is left of it until somebody waits does not count"


def test_another_process_of_the_same_number_is_left_alone(sleeper: subprocess.Popen[bytes]):
    stale = launch_of(sleeper.pid, process=process_key(os.getpid()))
    assert process_state(stale) == "ended"
    stop(stale)
    assert sleeper.poll() is None


def test_a_process_that_is_done_with_the_run_and_lives_on_does_not_run(sleeper: subprocess.Popen[bytes]):
    done = launch_of(sleeper.pid, ended_s=1.0)
    assert process_state(done) == "ended"
    stop(done)
    assert sleeper.poll() is None


def test_a_process_on_another_host_is_named_and_not_touched(sleeper: subprocess.Popen[bytes]):
    elsewhere = launch_of(sleeper.pid, host="node7")
    assert process_state(elsewhere) == "elsewhere"
    with pytest.raises(
        ConfigError, match=rf"on node7 as process {sleeper.pid}.*Stop it on node7: 'assay train stop r'"
    ):
        stop(elsewhere)
    assert sleeper.poll() is None


@pytest.mark.parametrize(("word", "begins"), [(b"go\n", True), (b"", False)])
def test_a_launch_begins_only_once_its_record_is_written(tmp_path: Path, word: bytes, begins: bool):
    shell = ["/bin/sh", "-c", _WAIT_FOR_GO, "sh", str(tmp_path / "log"), "touch", str(tmp_path / "begun")]
    with subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        job = int(process.stdout.readline())
        assert not (tmp_path / "begun").exists()
        process.stdin.write(word)
    while process_key(job):
        time.sleep(0.01)
    assert (tmp_path / "begun").exists() == begins
