"""Training of other libraries, recorded: killed, started again, and read by every command."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

import assay
from assay.integrations.recording import RunRecorder, record
from dashboard_server import DashboardServer
from full_disk import Disk
from in_process import AssayAt
from variants import slow

SCRIPTS = Path(__file__).parent / "recorded_scripts"


def start(script: str, out: Path, home: Path, *, kill_at: int = 0) -> int:
    """Run a training script to its end, or until it kills itself; return its exit code."""
    environment = {**os.environ, "ASSAY_HOME": str(home), "KILL_AT": str(kill_at)}
    command = [sys.executable, str(SCRIPTS / script), str(out)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
    return ended.returncode


def train(run: RunRecorder, steps: range) -> None:
    for step in steps:
        run.phase("data")
        run.log(step, {"loss": 1 / step})


@pytest.mark.slow
@pytest.mark.parametrize("host", ["transformers", "accelerate"])
def test_a_killed_training_is_one_run_with_two_attempts(host: str, tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    assert start(f"{host}_training.py", out, home, kill_at=16) == -signal.SIGKILL
    assert start(f"{host}_training.py", out, home) == 0
    assay_at = AssayAt(home)
    run = json.loads(assay_at("runs", "show", "digits-first", "--json").out)
    assert (run["status"], run["step"], run["imported"]["tool"]) == ("succeeded", 24, host)
    killed, last = run["attempts"]
    assert (killed["outcome"], killed["end_step"], killed["lost_steps"]) == ("killed", 12, 4)
    assert (last["start_step"], last["end_step"]) == (12, 24)
    assert [commit["step"] for commit in run["commits"]][-3:] == [12, 18, 24]
    assert run["metrics"]["loss"]["last_step"] == 24
    assert run["recipe"]["params"]["learning_rate"] == 0.01
    assert {"compute", "data", "checkpoint", "lost"} <= {
        name for name, seconds in run["device_seconds"].items() if seconds
    }

    goodput = json.loads(assay_at("runs", "goodput", "digits-first", "--json").out)
    assert sum(goodput["by_phase"].values()) == pytest.approx(goodput["held_device_s"])
    assert len(goodput["interruptions"]) == 1
    audit = json.loads(assay_at("runs", "audit", "digits-first", "--deep", "--json", code=3).out)
    assert (audit["verdict"], audit["problems"], audit["rows_expected"]) == ("incomplete", [], 0)
    assert audit["whole_checkpoints"] >= 2
    assay_at("runs", "tag", "digits-first", "good")
    assert "good" in assay_at("runs", "list").out
    assert "ended without a word" in assay_at("triage", "digits-first").out
    refused = assay_at("runs", "replay", "digits-first", "--step", "1", code=2).err
    assert "was trained by" in refused and "assay eval work digits-first --suite" in refused
    with DashboardServer(home, tmp_path / "dashboard.log") as server:
        page = urlopen(f"{server.address}/runs/digits-first").read().decode()
    for text in ("not observed", "Checkpoints of the training script", "Where the device time went"):
        assert text in page


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "trouble", "outcome"), [(0, "kill", "killed"), (1, "raise", "failed")])
def test_a_restart_by_torchrun_is_the_next_attempt(rank: int, trouble: str, outcome: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    command += [str(SCRIPTS / "elastic_training.py"), str(tmp_path), str(rank), trouble]
    # Without the first, the ranks of the restart wait for ever at the store of the ones before.
    environment = {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OMP_NUM_THREADS": "1",
        "ASSAY_HOME": str(tmp_path / "home"),
    }
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    run = json.loads(AssayAt(tmp_path / "home")("runs", "show", "digits-elastic", "--json").out)
    first, second = run["attempts"]
    assert first["outcome"] == outcome
    assert (first["end_step"], first["reached_step"], first["world_size"]) == (3, 5, 2)
    assert (second["outcome"], second["start_step"], second["end_step"]) == ("succeeded", 3, 10)
    segments = sorted(
        path.name for path in (tmp_path / "home" / "digits-elastic" / "metrics").rglob("*") if path.is_file()
    )
    assert len(segments) == 4, "each device in each attempt"


@pytest.mark.slow
def test_an_exception_ends_the_attempt_with_its_signature(tmp_path: Path) -> None:
    home = tmp_path / "home"
    environment = {**os.environ, "ASSAY_HOME": str(home), "FAIL_AT": "4"}
    command = [sys.executable, str(SCRIPTS / "transformers_training.py"), str(tmp_path / "out")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 1 and "ZeroDivisionError" in ended.stderr
    run = json.loads(AssayAt(home)("runs", "show", "digits-first", "--json").out)
    (attempt,) = run["attempts"]
    assert (run["status"], run["failure_kind"], attempt["end_step"]) == ("failed", "exception", 4)
    assert attempt["failure"]["signature"].startswith("ZeroDivisionError in ")


@pytest.mark.parametrize("host", ["accelerate", *slow("transformers")])
def test_importing_a_callback_imports_only_its_host(host: str) -> None:
    code = (
        f"import {host}, sys; getattr({host}, 'Trainer', None); import accelerate.tracking; "
        "before = {name.partition('.')[0] for name in sys.modules}; "
        f"import assay.integrations.{host}; "
        "after = {name.partition('.')[0] for name in sys.modules}; "
        "print(sorted(after - before - set(sys.stdlib_module_names)))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert printed.stdout.strip() == "['assay']"


def test_a_full_disk_ends_the_record_with_one_warning_and_not_the_training(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(disk.folder / "home"))
    with record("digits/first") as run:
        train(run, range(1, 5))
        disk.fill(reserve=0)
        train(run, range(5, 3_000))
    assert capfd.readouterr().err.count("is not recorded after step") == 1
    disk.make_room()
    AssayAt(disk.folder / "home")("runs", "list")
    seen = assay.run("digits-first").view()
    assert seen.metrics["loss"].num_points >= 4
    assert seen.status in ("running", "succeeded"), "its end may not be written, and its process lives"
