"""Ctrl-C at a terminal, which goes to every process of the command; with a log where no terminal is."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import assay
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from slurm_cluster import wait_until


@pytest.fixture
def recipe(tiny_recipe_tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(tiny_recipe_tree))
    return path


def started(*arguments: object) -> subprocess.Popen[str]:
    """In a process group of its own, as a shell starts it."""
    command = [sys.executable, "-m", "assay", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0)


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_leaves_a_run_that_goes_on_to_the_undisturbed_weights(
    recipe: Path, times: int, undisturbed: str
) -> None:
    slow = "{type: slow, step: 8, extra_s: 3, num_steps: 1}"  # so that it is pressed while it trains
    plan = recipe.with_name("faults.yaml")
    plan.write_text(f"faults: [{slow}]")
    folder, events = recipe.parent / "home" / "pressed", recipe.parent / "told"
    folder.parent.mkdir(exist_ok=True)
    (folder.parent / "settings.yaml").write_text(f"on_event: 'echo \"$ASSAY_EVENT $ASSAY_STEP\" >> {events}'")
    first = started("train", recipe, "--run-id", "pressed", "--workers", 2, "--faults", plan)
    log = CommitLog(open_store(str(folder)))
    wait_until(lambda: folder.exists() and log.commits(), "a first commit")
    for _ in range(times):
        os.killpg(first.pid, signal.SIGINT)
        wait_until(lambda: first.poll() is not None or times > 1, "the first to leave")
    output, _ = first.communicate(timeout=60)
    assert first.returncode == 130, output
    assert "assay train --resume pressed --workers 2" in output and "Traceback" not in output, output
    assert log.finished() is None
    (attempt,) = _attempts("pressed")
    assert (attempt.outcome, attempt.end_step) == ("preempted", log.commits()[-1].step)
    wait_until(lambda: events.exists() and events.read_text().endswith("\n"), "the command to be told")
    assert events.read_text() == f"stopped {attempt.end_step}\n"

    audited, _ = started("runs", "audit", "pressed").communicate(timeout=120)
    goes_on = "it stands at step {} of 20, and 'assay train --resume pressed' goes on"
    assert audited.startswith("INCOMPLETE") and goes_on.format(attempt.end_step) in audited

    again = started("train", "--resume", "pressed")
    output, _ = again.communicate(timeout=120)
    assert again.returncode == 0, output
    finished = log.finished()
    assert finished is not None and finished.weights_digest == undisturbed
    committed = re.findall(r"step (\d+)/20,.*committing", output)
    assert committed[-1] == "20" and len(committed) == len(set(committed))


def _attempts(run_id: str):
    with Home.from_environment().open_ledger() as ledger:
        return ledger.attempts(run_id)


SCRIPT = """
import assay
assay.train({recipe!r}, run_id="pressed", workers=2, faults={plan!r})
"""


@pytest.fixture
def script(recipe: Path) -> Iterator[subprocess.Popen[str]]:
    """A script that trains, in a process group of its own, once the first commit is there; step 8 takes 10 seconds."""
    plan = recipe.with_name("faults.yaml")
    plan.write_text("faults: [{type: slow, step: 8, extra_s: 10, num_steps: 1}]")
    source = SCRIPT.format(recipe=str(recipe), plan=str(plan))
    folder = recipe.parent / "home" / "pressed"
    log = CommitLog(open_store(str(folder)))
    with subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
    ) as process:
        wait_until(lambda: process.poll() is not None or (folder.exists() and log.commits()), "a first commit")
        yield process
        process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("interrupt", [os.kill, os.killpg], ids=["of a kernel", "at a terminal"])
def test_ctrl_c_in_python_commits_and_then_raises(script: subprocess.Popen[str], interrupt) -> None:
    job = int(assay.run("pressed").view().launches[-1].job)
    assert os.getpgid(job) == job, "a terminal's Ctrl-C and the script's would count as two"
    interrupt(script.pid, signal.SIGINT)
    output, _ = script.communicate(timeout=120)
    assert script.returncode == -signal.SIGINT and "KeyboardInterrupt" in output, output
    assert "continue with:\n  assay.run('pressed').resume(workers=2)\n" in output and "--resume" not in output, output
    (attempt,) = _attempts("pressed")
    view = assay.run("pressed").view()
    assert attempt.outcome == "preempted" and 8 <= view.step == view.reached_step() < 20, "nothing is lost"


@pytest.mark.slow
@pytest.mark.parametrize("interrupt", [os.kill, os.killpg], ids=["of a kernel", "at a terminal"])
def test_a_second_ctrl_c_in_python_does_not_wait(script: subprocess.Popen[str], interrupt) -> None:
    assert script.stdout is not None
    interrupt(script.pid, signal.SIGINT)
    for line in script.stdout:
        if line.startswith("Ctrl-C: committing"):
            break
    interrupt(script.pid, signal.SIGINT)
    output, _ = script.communicate(timeout=120)
    assert script.returncode == -signal.SIGINT, output
    (attempt,) = _attempts("pressed")
    assert attempt.outcome == "preempted" and attempt.end_step < 8


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_commits_and_stops_when_its_script_is_gone(script: subprocess.Popen[str], end: signal.Signals) -> None:
    script.send_signal(end)
    wait_until(lambda: assay.run("pressed").status != "running", "the run to stop")
    view = assay.run("pressed").view()
    assert view.status == "preempted" and 8 <= view.step == view.reached_step() < 20


@pytest.mark.slow
def test_a_caller_that_reads_no_progress_any_more_costs_no_run(recipe: Path) -> None:
    command = [sys.executable, "-m", "assay.api", "train", str(recipe), "--run-id", "pressed"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        process.stderr.close()
        assert process.wait(120) == 0
    assert assay.run("pressed").status == "succeeded"
