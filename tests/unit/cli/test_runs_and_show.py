"""A run's facts, recorded without training, as a person and a program see them."""

import gc
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.base.errors import ConfigError
from assay.cli.launch_target import LaunchTarget
from assay.cli.train.group import _check_not_running
from assay.records.audit import AuditReport
from assay.records.commit import AttemptBegan, Commit, CommitQuarantined, FileDigest, LogEntry, RunFinished
from assay.records.cursor import Cursor
from assay.records.evaluation import ClassifierEvaluation, ClassifierMetrics, Estimate
from assay.records.failure import Failure
from assay.records.incident import Incident
from assay.records.launch import Launch
from assay.records.run import Attempt, PhaseSeconds, Run
from assay.reporting.documents.runs import run_verdict
from assay.reporting.views.runs.run import run_view
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.incidents import append_incident
from assay.store.launches import process_key, save_launch
from assay.store.ledger.ledger import Ledger
from assay.store.metrics.fold import fold_run
from assay.store.metrics.phases import rank_phase_seconds
from assay.store.metrics.segment import SegmentWriter, segment_path
from assay.store.objects import open_store
from in_process import assay as call
from machine import MACHINE

BEGAN_S = 1_800_000_000.0


class FakeClock:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def now_s(self) -> float:
        return self.seconds

    def monotonic_s(self) -> float:
        return self.seconds - BEGAN_S

    def sleep_s(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ASSAY_LEDGER", raising=False)
    return tmp_path / "home"


def live(run: Run, attempt: Attempt, *, steps: range, rank: int) -> float:
    """Write a segment: 5 s of startup, then per step 1 s of data and 4 s of compute; the time at its end."""
    clock = FakeClock(attempt.started_s)
    path = segment_path(Path(run.run_dir), attempt.attempt, rank)
    writer = SegmentWriter(path, run_id=run.run_id, attempt=attempt.attempt, rank=rank, clock=clock)
    writer.event("began")
    clock.sleep_s(5)
    for step in steps:
        writer.phase("data")
        clock.sleep_s(1)
        writer.phase("compute")
        clock.sleep_s(4)
        writer.log(step, {"loss": 1 / step, "tokens": 100.0, "step_s": 5.0})
    writer.close()
    return clock.seconds


def commit(step: int, attempt: int) -> Commit:
    return Commit(
        attempt=attempt,
        world_size=2,
        step=step,
        cursor=Cursor(epoch=0, step_in_epoch=step),
        committed_s=BEGAN_S + 5 * step,
        folder=f"checkpoints/{step:08d}-{attempt:04d}",
        files=(FileDigest(path="model", num_bytes=1_500_000, sha256="f" * 64),),
        weights_digest=f"digest-{step}",
        receipts_from_step=0,
        rows_trained=8 * step,
    )


def recorded_run(ledger: Ledger, home: Path, run_id: str = "tiny-1") -> Run:
    run = Run(
        run_id=run_id,
        created_s=BEGAN_S,
        recipe={"name": "tiny", "trainer": {"max_steps": 30}},
        recipe_sha256="r" * 64,
        dataset_fingerprint="d" * 64,
        code_version="0.1.0",
        run_dir=str(home / run_id),
        store_url="memory:///",
        num_steps=10,
    )
    ledger.record_run(run)
    return run


def killed_and_recovered(ledger: Ledger, home: Path) -> None:
    """2 ranks, killed at step 15 after a commit at 10; then 1 rank to the end at step 30."""
    run = recorded_run(ledger, home)
    first = Attempt(run_id="tiny-1", attempt=1, world_size=2, start_step=0, started_s=BEGAN_S, **MACHINE)
    second = Attempt(run_id="tiny-1", attempt=2, world_size=1, start_step=10, started_s=BEGAN_S + 100, **MACHINE)
    lives = ((first, range(1, 16), 10, "killed"), (second, range(11, 31), 30, "succeeded"))
    for attempt, steps, end_step, outcome in lives:
        ended_s = max(live(run, attempt, steps=steps, rank=rank) for rank in range(attempt.world_size))
        end = {
            "ended_s": ended_s,
            "end_step": end_step,
            "outcome": outcome,
            "reason": f"it was {outcome} [/by hand]",
        }
        ledger.record_attempt(attempt.model_copy(update=end))
        for rank in range(attempt.world_size):
            ledger.record_phase_seconds(
                rank_phase_seconds(run, attempt, rank, held_to_s=ended_s, committed_step=end_step)
            )
    entries: list[LogEntry] = [
        AttemptBegan(attempt=1, world_size=2, began_s=BEGAN_S),
        commit(10, 1),
        commit(12, 1),
        CommitQuarantined(attempt=2, folder=commit(12, 1).folder, step=12, reason="torn"),
        AttemptBegan(attempt=2, world_size=1, began_s=BEGAN_S + 100),
        commit(30, 2),
        RunFinished(attempt=2, step=30, weights_digest="digest-30"),
    ]
    ledger.record_log_entries("tiny-1", dict(enumerate(entries)))
    metrics = ClassifierMetrics(
        num_rows=100,
        num_positive=20,
        auc=Estimate(value=0.9, low=0.85, high=0.95, method="DeLong"),
        average_precision=None,
        log_loss=Estimate(value=0.5),
        expected_calibration_error=0.1,
        calibration=(),
    )
    ledger.record_evaluation(
        ClassifierEvaluation(
            run_id="tiny-1",
            step=30,
            weights_digest="digest-30",
            dataset_fingerprint="d" * 64,
            split="validation",
            overall=metrics,
            slices=(),
            predictions_sha256="p",
        )
    )
    ledger.record_audit(
        AuditReport(
            run_id="tiny-1",
            verdict="pass",
            step=10,
            epochs=1,
            rows_expected=240,
            rows_trained=240,
            rows_quarantined=0,
        )
    )


def test_show_gives_a_program_every_documented_key(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Home.from_environment().open_ledger() as ledger:
        killed_and_recovered(ledger, home)
    assert call("runs", "show", "tiny", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["status"], shown["step"], shown["total_steps"]) == ("succeeded", 30, 30)
    assert shown["weights_digest"] == "digest-30"
    assert shown["world_sizes"] == [2, 1]
    assert [entry["is_quarantined"] for entry in shown["commits"]] == [False, True, False]
    assert shown["audit"]["verdict"] == "pass"
    assert shown["evaluation"]["overall"]["auc"]["value"] == 0.9
    assert shown["metrics"]["loss"]["last"] == pytest.approx(1 / 30)
    assert shown["lost_steps"] == 5
    seconds = {phase: spent for phase, spent in shown["device_seconds"].items() if spent}
    assert seconds == {"startup": 15, "data": 2 * 10 + 20, "compute": 4 * (2 * 10 + 20), "lost": 2 * 25}


def test_show_says_that_the_ledger_is_older_than_the_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Home.from_environment().open_ledger() as ledger:
        run_dir = Path(recorded_run(ledger, home).run_dir)
        ledger.record_write("tiny-1")
    (run_dir / "attempts").mkdir(parents=True, exist_ok=True)
    assert call("runs", "show", "tiny-1") == 0
    assert "last written" not in capsys.readouterr().err
    later_s = time.time() + 3600
    os.utime(run_dir / "attempts", (later_s, later_s))
    assert call("runs", "show", "tiny-1") == 0
    assert "tiny-1: the ledger row was last written" in capsys.readouterr().err


def test_show_says_of_which_steps_commits_are_kept(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Home.from_environment().open_ledger() as ledger:
        recorded_run(ledger, home)
        first, second, third = (commit(step, attempt=1) for step in (5, 10, 15))
        entries = [first, second, third.model_copy(update={"retires": (first.folder,)})]
        ledger.record_log_entries("tiny-1", dict(enumerate(entries)))
    assert call("runs", "show", "tiny-1") == 0
    assert "3, the last at step 15 (1.5 MB)  kept: steps 10, 15" in capsys.readouterr().out
    assert call("runs", "show", "tiny-1", "--json") == 0
    assert [load["is_retired"] for load in json.loads(capsys.readouterr().out)["commits"]] == [
        True,
        False,
        False,
    ]


KILLED = Failure(
    failure_kind="killed_by_signal", run_id="tiny-1", attempt=1, rank=1, host="node-7", device="cuda:3",
    phase="data", step=15, signature="SIGKILL", text="SIGKILL",
)  # fmt: skip


def test_show_says_what_ended_an_attempt_and_what_was_noticed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Home.from_environment().open_ledger() as ledger:
        killed_and_recovered(ledger, home)
        first, _ = ledger.attempts("tiny-1")
        ledger.record_attempt(first.model_copy(update={"failure": KILLED, "hosts": ("node-6", "node-7")}))
        slow = Incident(
            incident="straggler",
            run_id="tiny-1",
            attempt=2,
            at_s=BEGAN_S + 110,
            rank=0,
            step=12,
            text="it is slow",
        )
        append_incident(Path(ledger.run("tiny-1").run_dir), slow)
    assert call("runs", "show", "tiny", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    failure = shown["attempts"][0]["failure"]
    assert (failure["failure_kind"], failure["host"], failure["step"]) == ("killed_by_signal", "node-7", 15)
    assert shown["attempts"][0]["hosts"] == ["node-6", "node-7"]
    assert shown["attempts"][1]["failure"] is None
    assert [(item["incident"], item["rank"]) for item in shown["incidents"]] == [("straggler", 0)]
    assert call("runs", "show", "tiny") == 0
    happened = capsys.readouterr().out.partition("What happened")[2]
    incidents, _, messages = happened.partition("Messages of ranks")
    assert "Incidents\n- attempt 2, straggler: it is slow" in incidents.replace("○ ", "- ")
    assert "began" in messages and "rank 0: began" not in incidents


@pytest.mark.parametrize("is_on", [True, False])
def test_a_list_of_runs_leaves_the_collection_of_garbage_as_it_was(home: Path, is_on: bool) -> None:
    with Home.at(home).open_ledger() as ledger:
        recorded_run(ledger, home)
    try:
        (gc.enable if is_on else gc.disable)()
        assert call("runs") == 0
        assert gc.isenabled() == is_on
    finally:
        gc.enable()


def test_show_prints_the_page_of_all_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("runs", "keys") == 0
    assert "- `device_seconds` ({[phase](#enumerations): number}): Held by training" in capsys.readouterr().out
    assert call("runs", "show") == 2
    assert "Missing argument 'RUN'" in capsys.readouterr().err


def test_show_tells_a_person_the_whole_story_on_one_screen(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Home.from_environment().open_ledger() as ledger:
        killed_and_recovered(ledger, home)
    assert call("runs", "show", "tiny-1") == 0
    screen = capsys.readouterr().out
    for part in (
        "FINISHED",
        "30 of 30 on 2→1 ranks",
        "2, the last at step 30 (1.5 MB); 1 more found damaged and quarantined",
        "AUC on validation           0.9000  95%: [0.8500, 0.9500], DeLong, 100 rows",
        "240  of 240 up to step 10; audit: pass",
        "5 steps were made again",
        "■ lost 18.9%",
        "20 tokens/s",
        "it was killed [/by hand]",
    ):
        assert part in screen, screen
    assert len(screen.splitlines()) <= 40


def test_a_run_that_is_alive_shows_its_steps_and_costs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Home.from_environment().open_ledger() as ledger:
        run = recorded_run(ledger, home)
        attempt = Attempt(run_id="tiny-1", attempt=1, world_size=1, start_step=0, started_s=BEGAN_S, **MACHINE)
        ledger.record_attempt(attempt)
        live(run, attempt, steps=range(1, 4), rank=0)
    assert call("runs", "show", "tiny-1", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["status"], shown["step"], shown["weights_digest"]) == ("running", 0, None)
    assert shown["metrics"]["loss"]["last_step"] == 3
    assert {phase: spent for phase, spent in shown["device_seconds"].items() if spent} == {
        "startup": 5,
        "data": 3,
        "compute": 12,
    }
    assert call("runs", "show", "tiny-1") == 0
    assert "not evaluated yet" in capsys.readouterr().out
    assert call("runs", "--json") == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed["device_hours"] == pytest.approx(20 / 3600), "what show says of it"


def test_a_run_that_was_evaluated_on_the_way_is_not_said_to_be_without(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Home.from_environment().open_ledger() as ledger:
        run = recorded_run(ledger, home)
        ledger.record_attempt(
            Attempt(run_id="tiny-1", attempt=1, world_size=1, start_step=0, started_s=BEGAN_S, **MACHINE)
        )
    path = segment_path(Path(run.run_dir), 1, 0)
    writer = SegmentWriter(path, run_id=run.run_id, attempt=1, rank=0, clock=FakeClock(BEGAN_S))
    writer.log(10, {"loss": 0.5, "validation_auc": 0.7})
    writer.close()
    assert call("runs", "show", "tiny-1") == 0
    screen = capsys.readouterr().out
    words = " ".join(screen.split())
    assert "quality" not in screen and "auc 0.7000 at step 10; not evaluated at the end yet" in words
    assert "on 1 rank\n" in screen and "not audited" in screen


def test_the_curve_of_the_loss_per_row_has_the_name_of_its_last_value(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Home.from_environment().open_ledger() as ledger:
        run = recorded_run(ledger, home)
    writer = SegmentWriter(
        segment_path(Path(run.run_dir), 1, 0), run_id=run.run_id, attempt=1, rank=0, clock=FakeClock(BEGAN_S)
    )
    for step in (10, 20):
        writer.log(step, {"loss": 0.5, "validation_nats_per_token": 8.0 / step})
    writer.close()
    assert call("runs", "show", "tiny-1") == 0
    assert "Validation loss per row  0.8000" in (text := capsys.readouterr().out) and "per token" not in text


@pytest.mark.parametrize(
    ("pid", "is_refused"),
    [(os.getppid(), True), (2**22 - 1, False), (os.getpid(), False)],
    ids=["another's", "nobody's", "ours"],
)
def test_a_run_that_still_trains_is_not_resumed_beside_that(home: Path, pid: int, is_refused: bool) -> None:
    with Home.from_environment().open_ledger() as ledger:
        run = recorded_run(ledger, home)
    Path(run.run_dir).mkdir(parents=True)
    (Path(run.run_dir) / "run.json").write_text(run.to_sealed_json())
    save_launch(run, launcher="here", job=str(pid), world_size=1, process=process_key(pid) or "gone")
    here, request = LaunchTarget("here"), Home.from_environment()
    for take_over, location in ((True, here), (False, LaunchTarget("here", launched=True))):
        _check_not_running(request, "tiny-1", location, take_over=take_over)
    refused = pytest.raises(ConfigError, match=f"run tiny-1 is being trained by process {pid} on .*--take-over")
    with refused if is_refused else nullcontext():
        _check_not_running(request, "tiny-1", here, take_over=False)


def test_only_a_run_that_is_there_is_taken_over(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.mkdir(exist_ok=True)
    (home / "recipe.yaml").write_text("name: any\n")
    assert call("train", str(home / "recipe.yaml"), "--take-over") == 2
    assert "--take-over needs --resume RUN" in capsys.readouterr().err


def started_by(ledger: Ledger, home: Path, *, host: str = "", pid: int = 0, seen_ago_s: float = 0.0) -> None:
    """A run whose one attempt nobody has ended: by a process, and last heard of so long ago."""
    seen_s = time.time() - seen_ago_s if seen_ago_s else 0.0
    run = recorded_run(ledger, home)
    ledger.record_attempt(
        Attempt(run_id="tiny-1", attempt=1, world_size=2, start_step=0, started_s=seen_s or BEGAN_S, **MACHINE)
    )
    if seen_s:
        path = segment_path(Path(run.run_dir), 1, 0)
        SegmentWriter(path, run_id="tiny-1", attempt=1, rank=0, clock=FakeClock(seen_s)).close()
        fold_run(ledger, run)
    if pid:
        ledger.record_launch(
            Launch(
                run_id="tiny-1", number=1, launcher="background", job=str(pid), host=host or socket.gethostname(),
                process=process_key(pid) or "gone", started_by="ann", started_s=BEGAN_S, world_size=1, log="",
            )
        )  # fmt: skip


@pytest.mark.parametrize(
    ("started", "status", "message"),
    [
        ({"pid": os.getppid()}, "running", ""),
        ({"pid": 2**22 - 1}, "gone", "begin again (nothing is committed) assay train --resume tiny-1 --workers 2"),
        ({"pid": 12, "host": "node7", "seen_ago_s": 5.0}, "running", ""),
        (
            {"pid": 12, "host": "node7", "seen_ago_s": 7200.0},
            "unknown",
            "min ago launched as process 12 on node7",
        ),
        ({}, "unknown", "last sign of life none no launch is recorded"),
    ],
)  # fmt: skip
def test_a_run_runs_only_where_somebody_is_there_who_drives_it(
    home: Path, capsys: pytest.CaptureFixture[str], started: dict[str, Any], status: str, message: str
) -> None:
    with Home.from_environment().open_ledger() as ledger:
        started_by(ledger, home, **started)
        word = run_verdict.run_verdict(run_view(ledger, "tiny-1")).word
    words = {"gone": "supervisor gone", "unknown": "cannot tell"}
    assert word == words.get(status, status)
    for command in (["runs"], ["runs", "show", "tiny-1"]):
        assert call(*command, "--json") == 0
        assert f'"status":"{status}"' in capsys.readouterr().out
        assert call(*command) == 0
        assert words.get(status, status) in capsys.readouterr().out.lower()
    assert call("runs", "show", "tiny-1") == 0
    assert message in " ".join(capsys.readouterr().out.split())


def test_the_list_and_the_run_agree_on_the_last_commit_of_a_supervisor_that_was_killed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Home.from_environment().open_ledger() as ledger:
        started_by(ledger, home, pid=2**22 - 1)
        run = ledger.run("tiny-1").model_copy(update={"store_url": str(home / "tiny-1")})
        ledger.record_run(run)
        log = CommitLog(open_store(run.store_url))
        log.begin_attempt(world_size=2, now_s=BEGAN_S)
        for step in (15, 20):
            log.append(commit(step, 1))
        ledger.record_log_entries("tiny-1", dict(enumerate(log.entries()[:2])))  # the last one by nobody
    assert call("runs", "--json") == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert call("runs", "show", "tiny-1", "--json") == 0
    assert line["step"] == json.loads(capsys.readouterr().out)["step"] == 20


def test_a_run_whose_attempt_died_runs_while_its_supervisor_is_there(home: Path) -> None:
    with Home.from_environment().open_ledger() as ledger:
        started_by(ledger, home, pid=os.getppid())
        (attempt,) = ledger.attempts("tiny-1")
        dead = {"outcome": "killed", "ended_s": BEGAN_S + 1, "end_step": 0}
        ledger.record_attempt(attempt.model_copy(update=dead))
        assert run_view(ledger, "tiny-1").status == "running"


def test_on_a_full_disk_a_run_can_be_looked_at(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite writes beside a ledger even for who only reads: a copy is asked."""
    with Home.from_environment().open_ledger() as ledger:
        killed_and_recovered(ledger, home)
    full = shutil.disk_usage(home)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    opened, connect = [], sqlite3.connect
    monkeypatch.setattr(
        sqlite3,
        "connect",
        lambda path, *rest, **names: opened.append(str(path)) or connect(path, *rest, **names),
    )
    assert call("runs", "show", "tiny-1") == 0 and "30 of 30" in capsys.readouterr().out
    assert call("runs") == 0
    written = [path for path in opened if str(home) in path and "mode=ro" not in path]
    assert opened and not written


@pytest.mark.parametrize("command", [("report", "tiny-1"), ("decide", "compare", "tiny-1", "tiny-1")])
def test_a_run_whose_predictions_or_whole_folder_are_gone_was_evaluated_all_the_same(
    command: tuple[str, ...], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Home.from_environment().open_ledger() as ledger:
        killed_and_recovered(ledger, home)
    assert call(*command) == 2
    output = capsys.readouterr().err
    assert "predictions.parquet: no such file, though run 'tiny-1' was evaluated" in output
    shutil.rmtree(home / "tiny-1")
    assert call(*command) == 2
    gone = capsys.readouterr().err
    assert f"{home / 'tiny-1'}: no such folder, though run 'tiny-1' was evaluated in it" in gone
    assert not (home / "tiny-1").exists()


def test_a_page_that_finds_no_room_is_one_error_and_try_again(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Home.from_environment().open_ledger() as ledger:
        recorded_run(ledger, home)
    assert call("report", "tiny-1", "--out", "/dev/full") == 75
    output = capsys.readouterr().err
    assert output.count("error: ") == 1 and "/dev/full: cannot be written" in output and "The disk is full" in output


def test_runs_lists_each_run_on_one_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Home.from_environment().open_ledger() as ledger:
        killed_and_recovered(ledger, home)
    assert call("runs") == 0
    line = capsys.readouterr().out.splitlines()[1]
    for part in ("tiny-1", "succeeded", "30/30", "2→1", "0.9000", "2027-01-15"):
        assert part in line, line
    assert call("runs", "--json") == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed["device_hours"] == pytest.approx(265 / 3600)
    assert (listed["attempts"], listed["value"], listed["world_sizes"]) == (2, 0.9, [2, 1])


@pytest.mark.parametrize("word", ["stopped", "preempted"])
def test_a_run_is_found_by_the_status_that_the_list_shows(
    home: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    with Home.from_environment().open_ledger() as ledger:
        recorded_run(ledger, home)
        end = {"outcome": "preempted", "ended_s": BEGAN_S + 9}
        attempt = Attempt(run_id="tiny-1", attempt=1, world_size=2, start_step=0, started_s=BEGAN_S, **end, **MACHINE)
        ledger.record_attempt(attempt)
    assert call("runs", "list", "--status", word) == 0
    assert " stopped " in capsys.readouterr().out
    assert call("runs", "list", "--status", "failed", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("num_leaking", [0, 50])
def test_on_a_terminal_a_finished_run_is_green_where_nothing_speaks_against_its_model(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, num_leaking: int
) -> None:
    with Home.from_environment().open_ledger() as ledger:
        killed_and_recovered(ledger, home)
        (found,) = ledger.evaluations("tiny-1")
        ledger.record_evaluation(found.model_copy(update={"num_leaking": num_leaking}))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *arguments: False)
    assert call("runs", "show", "tiny-1") == 0
    assert ("\x1b[1;32m  FINISHED" in capsys.readouterr().out) is (num_leaking == 0)
    assert call("runs") == 0
    assert "\x1b[32m" not in capsys.readouterr().out, "the list knows nothing of the model"


def test_without_runs_the_commands_say_how_to_make_one_and_make_nothing(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("runs") == 0
    assert "assay train" in capsys.readouterr().out
    assert call("runs", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    assert call("runs", "show", "tiny-1") == 2
    assert "there are no runs" in capsys.readouterr().err
    assert not home.exists()


def test_a_ledger_that_has_none_of_the_runs_of_the_folder_says_so(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Home.from_environment().open_ledger() as ledger:
        run = recorded_run(ledger, home)
    Path(run.run_dir).mkdir()
    (Path(run.run_dir) / "run.json").write_text(run.model_dump_json())
    monkeypatch.setenv("ASSAY_LEDGER", f"sqlite:///{home}/another.db")
    assert call("runs") == 0
    assert "has none of the runs" in (text := capsys.readouterr().out) and "--rebuild" in text


def test_an_unknown_run_is_asked_wrongly(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Home.from_environment().open_ledger() as ledger:
        recorded_run(ledger, home)
    assert call("runs", "show", "tinny-1") == 2
    assert "Perhaps you meant tiny-1" in capsys.readouterr().err


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program of two activities with runs: tiny-*, and probe-*."""
    path = tmp_path / "program.yaml"
    assert call("plan", "new", str(path), "--start", "2027-01-04") == 0
    tree = yaml.safe_load(path.read_text())
    first, second = (item["runs"] for item in tree["activities"].values() if "runs" in item)
    first["ids"], second["ids"] = "tiny-*", "probe-*"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


def test_goodput_of_a_program_accounts_for_all_its_runs_and_for_no_other(
    home: Path, program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Home.from_environment().open_ledger() as ledger:
        killed_and_recovered(ledger, home)
        for run_id, held_s in (("tiny-2", 40.0), ("probe-1", 20.0), ("stranger", 1000.0)):
            lived_quietly(ledger, home, run_id, held_s)
    capsys.readouterr()
    assert call("runs", "goodput", str(program), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    together, parts = found["together"], found["by_activity"]
    assert set(together["run_ids"]) == {"tiny-1", "tiny-2", "probe-1"}
    assert {name: len(part["run_ids"]) for name, part in parts.items()} == {"replicate": 2, "extra_seeds": 1}
    assert together["held_device_s"] == 265.0 + 40 + 20 == sum(part["held_device_s"] for part in parts.values())
    assert sum(together["by_phase"].values()) == pytest.approx(together["held_device_s"], rel=1e-9)
    assert [item["lost_device_s"] for item in together["interruptions"]] == [50.0]
    assert together["num_open_attempts"] == 0


def test_goodput_of_a_program_has_a_line_for_each_activity(
    home: Path, program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Home.from_environment().open_ledger() as ledger:
        killed_and_recovered(ledger, home)
    capsys.readouterr()
    assert call("runs", "goodput", str(program)) == 0
    screen = capsys.readouterr().out
    lines = [re.split(" {2,}", line.strip()) for line in screen.splitlines()]
    header = next(line for line in lines if line[0] == "activity")
    first, probe = (dict(zip(header, line, strict=False)) for line in lines[lines.index(header) + 1 :][:2])
    assert "goodput  75.5%" in screen and "it was killed" in screen
    assert (first["runs"], first["goodput"]) == ("1", "75.5%"), screen
    assert (probe["runs"], probe["device time"], probe["goodput"]) == ("0", "0 s", "-"), screen


def test_goodput_of_several_runs_has_a_line_for_each_and_counts_none_twice(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Home.from_environment().open_ledger() as ledger:
        killed_and_recovered(ledger, home)
        lived_quietly(ledger, home, "other", 36.0)
    assert call("runs", "goodput", "tiny-1", "other", "tiny-1") == 0
    screen = capsys.readouterr().out
    assert "goodput of 2 runs" in screen and "held     5 min 01 s" in screen
    assert [line.split()[:3] for line in screen.splitlines() if line.strip().startswith("other")] == [
        ["other", "36", "s"]
    ]


def test_goodput_says_what_is_wrong_with_a_program(
    home: Path, program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Home.from_environment().open_ledger() as ledger:
        lived_quietly(ledger, home, "stranger", 1.0)
    capsys.readouterr()
    assert call("runs", "goodput", str(program)) == 0
    assert "activities.*.runs.ids" in capsys.readouterr().out
    assert call("runs", "goodput", str(program), "stranger") == 2
    assert "name it alone" in capsys.readouterr().err
    assert call("runs", "goodput", str(tmp_path / "absent.yaml")) == 2
    assert "absent.yaml" in capsys.readouterr().err


def lived_quietly(ledger: Ledger, home: Path, run_id: str, held_s: float) -> None:
    """One rank, one attempt, all of it computing."""
    recorded_run(ledger, home, run_id)
    ledger.record_attempt(
        Attempt(
            run_id=run_id,
            attempt=1,
            world_size=1,
            start_step=0,
            started_s=BEGAN_S,
            ended_s=BEGAN_S + held_s,
            end_step=1,
            outcome="succeeded",
            **MACHINE,
        )
    )
    ledger.record_phase_seconds(
        PhaseSeconds(run_id=run_id, attempt=1, rank=0, held_s=held_s, seconds={"compute": held_s})
    )


def test_the_package_is_run_as_the_command_is(home: Path) -> None:
    def ended(*arguments: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "assay", *arguments]
        return subprocess.run(program, capture_output=True, text=True, check=False)

    with Home.from_environment().open_ledger() as ledger:
        recorded_run(ledger, home)
    assert "Usage: assay [OPTIONS]" in ended("--help").stdout
    assert json.loads(ended("runs", "--json").stdout)[0]["run_id"] == "tiny-1"
    wrong = ended("runs", "show", "tinny-1")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "Perhaps you meant tiny-1" in wrong.stderr


@pytest.mark.parametrize(
    ("requested", "meant"),
    [
        ("trainer.learning_rate", "trainer.optimizer.learning_rate"),
        ("trainer.lr", "trainer.optimizer.learning_rate"),
        ("lr", "trainer.optimizer.learning_rate"),
        ("trainer.max_step", "trainer.max_steps"),
    ],
)
def test_a_key_of_no_run_is_answered_as_one_of_no_recipe_is(
    home: Path, capsys: pytest.CaptureFixture[str], requested: str, meant: str
) -> None:
    with Home.from_environment().open_ledger() as ledger:
        run = recorded_run(ledger, home)
        trainer = {"max_steps": 30, "compile": False, "optimizer": {"learning_rate": 0.1}}
        ledger.record_run(run.model_copy(update={"recipe": {"trainer": trainer}}))
    assert call("runs", "--where", f"{requested}=1") == 2
    assert f"Perhaps you meant {meant}." in capsys.readouterr().err


@pytest.mark.parametrize("shows_one_score", [False, True])
def test_a_commit_at_whose_look_all_rows_got_one_score_is_flagged(
    home: Path, capsys: pytest.CaptureFixture[str], shows_one_score: bool
) -> None:
    with Home.from_environment().open_ledger() as ledger:
        run = recorded_run(ledger, home)
        attempt = Attempt(run_id="tiny-1", attempt=1, world_size=1, start_step=0, started_s=BEGAN_S, **MACHINE)
        ledger.record_attempt(attempt)
        path = segment_path(Path(run.run_dir), 1, 0)
        writer = SegmentWriter(path, run_id="tiny-1", attempt=1, rank=0, clock=FakeClock(BEGAN_S))
        for step in (10, 20):
            writer.log(step, {"loss": 0.5, "one_score": float(shows_one_score)})
        writer.close()
        fold_run(ledger, run)
        ledger.record_log_entries("tiny-1", dict(enumerate([commit(step, 1) for step in (10, 15, 20)])))
    assert call("runs", "show", "tiny-1", "--json") == 0
    commits = json.loads(capsys.readouterr().out)["commits"]
    flagged = [item["step"] for item in commits if [flag["rule"] for flag in item["flags"]] == ["one score"]]
    assert flagged == ([10, 20] if shows_one_score else [])


def test_scores_are_not_filed_as_a_commits_that_is_not_there_nor_as_one_of_other_weights(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Home.from_environment().open_ledger() as ledger:
        run = recorded_run(ledger, home).model_copy(update={"store_url": str(home / "tiny-1")})
    (home / "tiny-1").mkdir(parents=True, exist_ok=True)
    (home / "tiny-1" / "run.json").write_text(run.to_json())
    log = CommitLog(open_store(run.store_url))
    log.begin_attempt(world_size=1, now_s=BEGAN_S)
    log.append(commit(20, 1))
    scores = {"m": {"value": "C"}}
    (tmp_path / "log.json").write_text(
        json.dumps({"eval": {"task": "t", "model": "x"}, "samples": [{"id": 1, "epoch": 1, "scores": scores}]})
    )
    request = ("eval", "import", str(tmp_path / "log.json"), "--run-id", "tiny-1", "--step")
    assert call(*request, "7") == 2
    assert "run 'tiny-1' has no commit of step 7. It has commits at steps: 20." in capsys.readouterr().err
    assert call(*request, "20") == 0
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "suite.yaml").write_text("name: s\nbenchmarks:\n  - {type: bits_per_byte, name: b, files: ['*.txt']}\n")
    of_folder = ("eval", "run", str(tmp_path / "model"), "--suite", str(tmp_path / "suite.yaml"))
    assert call(*of_folder, "--run-id", "tiny-1", "--step", "20") == 2
    assert "is not an export of run 'tiny-1' at step 20" in capsys.readouterr().err
