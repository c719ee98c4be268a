"""How an attempt of a script ends on a machine that is busy with other work."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from assay.checks.resume.attempt import ScriptAttempt, ScriptCommand, Stop, run_attempt

ON_ONE_CORE = "import os, time; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
OTHERS = 3
"""Busy processes on the same core, so that the script gets a quarter of it."""
LIMIT_S = 1.5


@pytest.fixture
def others():
    busy = [subprocess.Popen([sys.executable, "-c", ON_ONE_CORE + "while True: pass"]) for _ in range(OTHERS)]
    yield
    for process in busy:
        process.kill()
        process.wait()


def attempt_of(code: str, tmp_path: Path) -> ScriptAttempt:
    words = (sys.executable, "-c", ON_ONE_CORE + code)
    return run_attempt(ScriptCommand(words, tmp_path / "out", {}, LIMIT_S, grace_s=1.0), 1, tmp_path / "attempt")


@pytest.mark.usefixtures("others")
def test_time_in_which_other_work_has_the_core_does_not_count(tmp_path: Path) -> None:
    attempt = attempt_of(f"while time.process_time() < {LIMIT_S / 2}: pass", tmp_path)
    assert attempt.exit_code == 0
    assert attempt.seconds > LIMIT_S


@pytest.mark.usefixtures("others")
def test_a_script_that_waits_for_itself_is_ended(tmp_path: Path) -> None:
    began_s = time.monotonic()
    attempt = attempt_of("import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()", tmp_path)
    assert attempt.exit_code is None
    assert time.monotonic() - began_s < 20 * LIMIT_S
    assert attempt.problem == "did not end within --timeout, and printed nothing"


LAUNCHER = """
print("loading the data")
print("Traceback (most recent call last):\\n  File 'train.py', line 3, in main")
print("ValueError: no checkpoint at step 5\\nE1129 torch/distributed/elastic] failed (exitcode: 1) local_rank: 1")
print("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\\n" + 60 * "=" + "\\ntrain.py FAILED")
print("  error_file: <N/A>\\n  traceback : To enable traceback see: errors.html\\n" + 60 * "=")
"""


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("raise SystemExit(1)", "ended with exit code 1: ValueError: no checkpoint at step 5"),
        ("", "ended with exit code 0: traceback : To enable traceback see: errors.html"),
    ],
)
def test_a_failure_is_told_by_its_rank_and_not_by_the_last_line(code: str, problem: str, tmp_path: Path) -> None:
    assert attempt_of(LAUNCHER + code, tmp_path).problem == problem


SLOW_WRITER = """
import os, time, torch
write = os.write
os.write = lambda *arguments: (time.sleep(0.1), write(*arguments))[1]
weight = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(weight.parameters(), lr=0.1)
weight(torch.ones(2, 8)).sum().backward()
optimizer.step()
"""


def test_a_script_that_a_busy_machine_delays_at_its_stop_has_reached_it(tmp_path: Path) -> None:
    """It says where it is before the signal may come."""
    command = ScriptCommand((sys.executable, "-c", SLOW_WRITER), tmp_path / "out", {}, timeout_s=120.0, grace_s=1.0)
    attempt = run_attempt(command, 1, tmp_path / "attempt", Stop("step", 1))
    assert attempt.is_stopped and attempt.exit_code == -9
    assert len(attempt.training.steps) == 1
