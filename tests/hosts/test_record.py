"""Training by TRL and Lightning, recorded: killed, started again, and read by the commands."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from host_scripts import audit_of_recorded
from in_process import AssayAt

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def hosts(requires: Callable[[str, bool, str], None]) -> None:
    for package in ("trl", "lightning"):
        requires("hosts", find_spec(package) is not None, f"{package} is not installed (make test-hosts)")


def start(script: str, out: Path, home: Path, **trouble: int) -> int:
    """Run a training script to its end, or until it kills itself; return its exit code."""
    environment = {**os.environ, "ASSAY_HOME": str(home), **{name: str(step) for name, step in trouble.items()}}
    command = [sys.executable, str(HERE / script), str(out)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert ended.returncode in (0, -signal.SIGKILL) or "FAIL_AT" in trouble, ended.stderr
    return ended.returncode


@pytest.mark.parametrize(
    ("script", "run_id", "tool"),
    [("recorded_sft.py", "words-first", "transformers"), ("recorded_fit.py", "digits-first", "lightning")],
)
def test_a_killed_training_is_one_run_with_two_attempts(script: str, run_id: str, tool: str, tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    assert start(script, out, home, KILL_AT=8) == -signal.SIGKILL
    assert start(script, out, home) == 0
    assay_at = AssayAt(home)
    run = json.loads(assay_at("runs", "show", run_id, "--json").out)
    assert (run["status"], run["step"], run["imported"]["tool"]) == ("succeeded", 12, tool)
    killed, last = run["attempts"]
    assert (killed["outcome"], killed["end_step"], last["start_step"], last["end_step"]) == ("killed", 6, 6, 12)
    assert killed["lost_steps"] in (1, 2)  # Lightning's dies before its eighth step is done
    assert [commit["step"] for commit in run["commits"]][-2:] == [9, 12]
    assert run["metrics"]["loss"]["last_step"] == 12
    goodput = json.loads(assay_at("runs", "goodput", run_id, "--json").out)
    assert sum(goodput["by_phase"].values()) == pytest.approx(goodput["held_device_s"])
    audit = json.loads(assay_at("runs", "audit", run_id, "--deep", "--json", code=3).out)
    assert (audit["problems"], audit["whole_checkpoints"]) == ([], len({c["step"] for c in run["commits"]}))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["sft_trainer", "lightning_fit"])
def test_the_record_shows_each_row_once_through_kills(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    report = audit_of_recorded(name, tmp_path)
    assert (report.verdict, report.epochs, report.rows_expected, report.rows_trained) == ("pass", 2, 102, 102), report


def test_an_exception_in_lightning_ends_the_attempt_with_its_signature(tmp_path: Path) -> None:
    assert start("recorded_fit.py", tmp_path / "out", tmp_path / "home", FAIL_AT=4) == 1
    run = json.loads(AssayAt(tmp_path / "home")("runs", "show", "digits-first", "--json").out)
    (attempt,) = run["attempts"]
    assert (run["status"], attempt["end_step"]) == ("failed", 3)
    assert attempt["failure"]["signature"].startswith("ZeroDivisionError in ")


def test_importing_the_callback_imports_only_lightning() -> None:
    code = (
        "import sys, lightning.pytorch; before = {name.partition('.')[0] for name in sys.modules}; "
        "import assay.integrations.lightning; after = {name.partition('.')[0] for name in sys.modules}; "
        "print(sorted(after - before - set(sys.stdlib_module_names)))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert printed.stdout.strip() == "['assay']"
