"""A program of real tiny runs, seconds for hours: planned, executed, a run killed, a gate fails, it narrows."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from assay.reporting.documents.markdown import plain
from assay.reporting.views.statements import decision_text
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.workflows.campaign.folder import find_campaign, newest_decisions
from in_process import AssayAt

HOUR_S = 1.0
"""A second of the clock is an hour of the program."""

PREPARED_H = 18
"""When the first run begins: the first day's work is done at 17:00."""

_OWNERS = {"responsible": "engineer", "accountable": "lead"}


def _campaign(recipe: str) -> dict[str, object]:
    return {
        "name": "mini",
        "question": "Is a higher learning rate clearly better?",
        "recipe": recipe,
        "candidates": [{"name": "faster", "patch": {"trainer.optimizer.learning_rate": 0.004}}],
        "seeds": 2,
        "budget_device_hours": 1,
        "benchmarks": [{"type": "predictions", "name": "likelihood", "score": "log_likelihood"}],
        "rule": {"primary": ["likelihood"], "least_effect": 0.02},
    }


def _program() -> dict[str, object]:
    wins = {"benchmark": "wins", "runs": "replicate", "pass_at": 2.0, "stop_below": 0.0, "between": "narrow"}
    return {
        "name": "miniature",
        "title": "A program in miniature",
        "calendar": {"start": "2027-01-04", "weeks": 8},
        "decision": {"decided_by": "memo", "by": "end of week 2", "review": "week 3"},
        "team": {"engineer": 1.0},
        "stakeholders": {"lead": "Lead"},
        "capacity": {"devices": 4},
        "budget": {"device_hours": 400.0},
        "benchmarks": {"wins": {"items": 2000}},
        "pilot": {"benchmark": "wins", "gains": [3.0], "standard_error": 1.5},
        "stages": {"all": {"title": "All of it", "owners": _OWNERS}},
        "activities": {
            "prepare": {"title": "Prepare", "stage": "all", "work": {"days": 1.0, "people": {"engineer": 1.0}}},
            "replicate": {
                "title": "Replicate the pilot",
                "stage": "all",
                "after": ["prepare"],
                "runs": {"count": 4, "modes": [{"devices": 1, "hours": 12}], "ids": "mini-*"},
            },
            "scale_probe": {
                "title": "One size up",
                "stage": "all",
                "after": ["gate"],
                "runs": {"count": 2, "modes": [{"devices": 2, "hours": 24}]},
            },
            "memo": {
                "title": "Memo",
                "stage": "all",
                "after": ["gate", "scale_probe"],
                "work": {"days": 1.0, "people": {"engineer": 1.0}},
            },
        },
        "gates": {
            "gate": {
                "title": "Is the gain there?",
                "stage": "all",
                "after": ["replicate"],
                "evidence": {**wins, "campaign": "mini"},
                "narrow": {"drops": ["scale_probe"]},
                "stop_goes_to": ["memo"],
            }
        },
    }


def _assay(*arguments: object, codes: tuple[int, ...] = (0,)) -> str:
    command = [sys.executable, "-c", "from assay.cli.main import main; main()", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in codes, done.stderr
    return done.stdout


def _run_campaign_killing_one_run(file: Path, home: Path) -> None:
    command = [sys.executable, "-c", "from assay.cli.main import main; main()", "decide", "run", str(file)]
    killed = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    log = CommitLog(open_store(str(home / "mini-faster-s0")))
    deadline = time.monotonic() + 120
    while not log.commits():
        assert killed.poll() is None and time.monotonic() < deadline, "nothing to kill"
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    AssayAt(home)("decide", "run", file)


def _notes(path: Path, start_s: float) -> None:
    now_h = int((time.time() - start_s) / HOUR_S) + 2
    now = f"2027-01-{4 + now_h // 24:02d}T{now_h % 24:02d}:00"
    done = {"started": "2027-01-04T09:00", "ended": "2027-01-04T17:00"}
    path.write_text(
        yaml.safe_dump({"now": now, "activities": {"prepare": done, "gate": {"started": now, "ended": now}}})
    )


@pytest.mark.slow
def test_a_program_of_real_runs_narrows_where_its_gate_fails_and_the_review_says_so(
    tiny_recipe_tree: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, plans = tmp_path / "home", tmp_path / "plans"
    monkeypatch.setenv("ASSAY_HOME", str(home))
    for name, tree in (
        ("recipe.yaml", tiny_recipe_tree),
        ("campaign.yaml", _campaign("recipe.yaml")),
        ("program.yaml", _program()),
    ):
        (tmp_path / name).write_text(yaml.safe_dump(tree))
    program, notes = tmp_path / "program.yaml", tmp_path / "notes.yaml"

    _assay("plan", "offer", program, "--out", plans, "--quick", "--samples", "1000", "--on-time", "0.5")
    start_s = time.time() - PREPARED_H * HOUR_S
    _run_campaign_killing_one_run(tmp_path / "campaign.yaml", home)
    _notes(notes, start_s)
    clock = ("--notes", notes, "--hour-seconds", HOUR_S, "--start", start_s)
    status = json.loads(_assay("plan", "status", program, plans, *clock, "--json", codes=(0, 1)))
    must_act = any(alarm["level"] == "act" for alarm in status["alarms"])
    _assay("plan", "review", program, plans, *clock, codes=(int(must_act),))

    decision = newest_decisions(find_campaign(Home.from_environment(), "mini").folder)["faster"]
    assert decision.recommendation == "narrow"
    with Home.from_environment().open_ledger() as ledger:
        held_s = sum(second.held_s for run in ledger.runs() for second in ledger.phase_seconds(run.run_id))
    assert status["spent_device_hours"] == pytest.approx(held_s / HOUR_S)
    assert status["forecast"]["verdicts"]["narrow"] == 1.0
    review = (plans / "review.md").read_text()
    assert "**narrow.** Narrow the scope: 'Is the gain there?' asked for it" in review
    assert f"{held_s / HOUR_S:,.4g} of 400 device-hours were spent" in review
    assert "- runs: **4** (5 attempts, 1 killed or failed)" in review
    assert "| Is the gain there? | wins: pass +2, stop below +0 | narrow | One size up |" in review
    assert plain(decision_text(decision)) in review
    assert decision.digest()[:12] in review
