"""A campaign whose arms are trained elsewhere, two at a time: killed, it ends as an undisturbed one does."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.launchers.launches import last_launch, state_of
from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.launches import saved_launches
from assay.store.objects import open_store
from assay.workflows.campaign.folder import find_campaign, recorded_decisions
from slurm_cluster import SlurmCluster

CAMPAIGN = [sys.executable, "-c", "from assay.cli.main import main; main()", "decide", "run"]
SMALL = ("seeds=2", "candidates=[{name: faster, patch: {trainer.optimizer.learning_rate: 0.01}}]")
"""One candidate and two seeds, in place of two and three."""


@pytest.fixture
def campaign_file(tiny_recipe_tree: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two candidates and three seeds; runs are long enough to be killed in the midst."""
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    tree = {**tiny_recipe_tree, "trainer": {**tiny_recipe_tree["trainer"], "epochs": 6}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    campaign = {
        "name": "tiny",
        "question": "Does a far higher learning rate help, or more dropout?",
        "recipe": "recipe.yaml",
        "candidates": [
            {"name": "faster", "patch": {"trainer.optimizer.learning_rate": 0.01}},
            {"name": "dropout", "patch": {"method.head_dropout": 0.2}},
        ],
        "seeds": 3,
        "budget_device_hours": 1,
        "benchmarks": [{"type": "predictions", "name": "likelihood", "score": "log_likelihood"}],
        "rule": {"primary": ["likelihood"], "least_effect": 0.02},
    }
    path = tmp_path / "campaign.yaml"
    path.write_text(yaml.safe_dump(campaign))
    return path


def start(path: Path, *options: str) -> subprocess.Popen[bytes]:
    """The command in a process of its own."""
    with (path.parent / "said").open("ab") as output:
        return subprocess.Popen([*CAMPAIGN, str(path), *options], start_new_session=True, stdout=output, stderr=output)


def in_the_midst(process: subprocess.Popen[bytes], home: Home) -> Run:
    """A run that has committed, is not finished, and is being trained; the campaign's process goes on."""
    deadline_s = time.monotonic() + 600
    while time.monotonic() < deadline_s:
        assert process.poll() is None, "the campaign ended before it could be killed"
        for run in home.runs():
            log = CommitLog(open_store(run.store_url))
            if log.commits() and log.finished() is None and state_of(last_launch(run)) == "running":
                return run
        time.sleep(0.02)
    raise AssertionError("no run committed")


def killed_in_the_midst(process: subprocess.Popen[bytes], home: Home) -> Run:
    """The campaign's command, with SIGKILL; returns the run that goes on without it."""
    run = in_the_midst(process, home)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return run


def summary(home: Home) -> tuple[list[Any], str]:
    """The decisions and the memo, but for what depends on the clock and on who was killed.

    Device time, and with it the digests of results (they say when they were made); the number of attempts.
    """
    campaign = find_campaign(home, "tiny")
    decisions = [_timeless(decision.to_tree()) for decision in recorded_decisions(campaign.folder)]
    return decisions, _timeless((campaign.folder / "memo.md").read_text())


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        is_source = set(value) == {"path", "sha256"}
        no_time = {
            "device_s",
            "spent_s",
            "next_s",
            "next_wall_s",
            "num_attempts",
            "restarts",
            *(["sha256"] if is_source else []),
        }
        if value.get("type") == "budget":
            no_time |= {"value"}
        return {name: None if name in no_time else _timeless(element) for name, element in value.items()}
    if isinstance(value, list):
        return [_timeless(item) for item in value]
    if isinstance(value, str):
        value = re.sub(r"; \d+ restarts? survived", "", value)
        value = re.sub(r"[\d.]+ (s|min|h)( [\d.]+ (?:s|min))?\b", "TIME", value)
        value = re.sub(r"\| \d+ \| TIME \|", "| ATTEMPTS | TIME |", value)
        return re.sub(r"declared [\d:TZ-]+|\([0-9a-f]{64}\)", "", value)
    return value


def assert_accounted(home: Home, *, killed: Run) -> None:
    """Each arm was trained once, but for the one whose launch was killed; what it cost is what was held."""
    decisions = recorded_decisions(find_campaign(home, "tiny").folder)
    with home.open_ledger() as ledger:
        for arm in {run.run_id: run for decision in decisions for run in decision.runs}.values():
            run, num_lives = home.run(arm.run_id), 1 + (arm.run_id == killed.run_id)
            assert len(saved_launches(run)) == len(ledger.launches(arm.run_id)) == num_lives, arm.run_id
            assert arm.num_attempts == len(ledger.attempts(arm.run_id)) == num_lives, arm.run_id
            assert arm.audit_verdict == "pass"
            held_s = sum(second.held_s for second in ledger.phase_seconds(arm.run_id))
            assert arm.device_s == pytest.approx(held_s) and held_s > 0.0


def most_at_once(home: Home) -> int:
    """Attempts whose times overlap."""
    with home.open_ledger() as ledger:
        attempts = [attempt for run in home.runs() for attempt in ledger.attempts(run.run_id)]
    return max(
        sum(other.started_s <= attempt.started_s < (other.ended_s or 0.0) for other in attempts) for attempt in attempts
    )


def disturbed(path: Path, kill: Callable[[Run], None], *options: str) -> Run:
    """Begun, killed with SIGKILL, run again, one of its launches killed, too; returns that launch's run."""
    home = Home.from_environment()
    killed_in_the_midst(start(path, *options), home)
    again = start(path, *options)
    victim = in_the_midst(again, home)
    kill(victim)
    assert again.wait(timeout=1000) == 0, (path.parent / "said").read_text()
    return victim


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "size", [pytest.param(SMALL, id="small"), pytest.param((), id="whole", marks=pytest.mark.soak)]
)
def test_a_campaign_on_slurm_that_is_killed_twice_ends_with_the_memo_of_an_undisturbed_one(
    size: tuple[str, ...],
    slurm: SlurmCluster,
    campaign_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kill_job(run: Run) -> None:
        slurm.call("scancel", "--full", "--signal=KILL", saved_launches(run)[-1].job)

    killed = disturbed(campaign_file, kill_job, *size, "--on", "slurm", "--runs-at-once", "2")
    home = Home.from_environment()
    assert_accounted(home, killed=killed)
    assert most_at_once(home) == 2
    assert not slurm.call("squeue", "-h")

    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "undisturbed"))
    assert start(campaign_file, *size).wait(timeout=700) == 0
    assert summary(home) == summary(Home.from_environment())


@pytest.mark.soak
def test_a_campaign_in_the_background_that_is_killed_takes_over_what_runs_and_trains_nothing_twice(
    campaign_file: Path,
) -> None:
    options = (*SMALL, "--on", "background", "--runs-at-once", "2")
    home = Home.from_environment()
    running = killed_in_the_midst(start(campaign_file, *options), home)
    assert last_launch(running) is not None
    assert start(campaign_file, *options).wait(timeout=200) == 0
    (decision,) = recorded_decisions(find_campaign(home, "tiny").folder)
    assert [len(saved_launches(home.run(run.run_id))) for run in decision.runs] == [1] * 4
    assert [run.num_attempts for run in decision.runs] == [1] * 4
    with home.open_ledger() as ledger:
        for run in decision.runs:
            assert run.device_s == pytest.approx(sum(second.held_s for second in ledger.phase_seconds(run.run_id)))
