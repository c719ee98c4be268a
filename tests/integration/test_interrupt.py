"""Ctrl-C at a terminal, which goes to every process of the command; with a log where no terminal is."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

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
