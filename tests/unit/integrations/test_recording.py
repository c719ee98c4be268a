"""The record of a training loop that is not ours."""

import json
import os
import random
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import assay
from assay.base.errors import ConfigError
from assay.integrations.recorded_run import RecordRequest, join_attempt
from assay.integrations.recording import RunRecorder, record
from assay.reporting.views.runs.run import RunView
from assay.store.home import Home
from assay.store.ledger.goodput import goodput_of
from assay.store.ledger.ledger import Ledger
from assay.workflows.audit import audit_and_record
from assay.workflows.rebuild import fold_in_missed
from in_process import AssayAt


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ASSAY_LEDGER", raising=False)
    return Home.from_environment()


def in_fork(work: Callable[[], None]) -> int:
    """Run something in a process that is forked from this one; return its status."""
    if (pid := os.fork()) == 0:
        with suppress(BaseException):
            work()
            os._exit(0)
        os._exit(1)
    return os.waitpid(pid, 0)[1]


def train(run: RunRecorder, steps: range, *, checkpoint_every: int = 5, folder: Path | None = None) -> None:
    for step in steps:
        run.phase("data")
        run.phase("compute")
        run.log(step, {"loss": 1 / step}, rows=4)
        if folder is not None and step % checkpoint_every == 0:
            run.phase("checkpoint")
            save(folder / f"step-{step}", step)
            run.checkpoint(folder / f"step-{step}", step)


def save(folder: Path, step: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(bytes([step]) * 1000)
    (folder / "optimizer.pt").write_bytes(bytes([step + 1]) * 2000)


def killed_after(steps: range, *, folder: Path | None = None) -> None:
    """Record steps in a process that is then killed."""

    def work() -> None:
        run = record("digits/first", start_step=steps.start - 1)
        train(run, steps, folder=folder)
        time.sleep(0.2)  # digests are computed in a thread
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_fork(work) == signal.SIGKILL


def view(home: Home, run_id: str = "digits-first") -> RunView:
    with home.open_ledger() as ledger:
        assert fold_in_missed(home, ledger) == []
    return assay.run(run_id).view()


def ledger_of(home: Home) -> Ledger:
    ledger = home.open_ledger()
    fold_in_missed(home, ledger)
    return ledger


def test_an_undisturbed_run_has_its_curve_rows_and_parameters(home: Home) -> None:
    with record("digits/first", config={"lr": 0.1}, num_steps=6) as run:
        train(run, range(1, 7))
    seen = view(home)
    assert (seen.status, seen.name, seen.step, seen.total_steps) == ("succeeded", "digits", 6, 6)
    assert seen.recipe["params"] == {"lr": 0.1}
    assert seen.metrics["rows"].num_points == 6
    assert assay.run("digits-first").curve("loss").values.tolist() == [1 / step for step in range(1, 7)]


def test_the_phases_of_all_devices_sum_to_the_time_that_they_were_held(home: Home) -> None:
    with record("digits/first", devices=4) as run:
        train(run, range(1, 20))
    with ledger_of(home) as ledger:
        goodput = goodput_of(ledger, [ledger.run("digits-first")])
    attempt = view(home).attempts[0]
    assert attempt.held_s is not None
    assert goodput.held_device_s == pytest.approx(4 * attempt.held_s, abs=1e-4)
    assert sum(goodput.by_phase.values()) == pytest.approx(goodput.held_device_s, abs=1e-4)
    assert set(goodput.by_phase) >= {"startup", "data", "compute"}


def test_a_killed_run_goes_on_as_the_next_attempt_and_what_was_repeated_is_lost(home: Home, tmp_path: Path) -> None:
    killed_after(range(1, 9), folder=tmp_path / "out")
    assert view(home).status == "gone"
    with record("digits/first", start_step=5) as run:
        train(run, range(6, 11), folder=tmp_path / "out")
    seen = view(home)
    first, second = seen.attempts
    assert (first.outcome, first.end_step, first.lost_steps, first.reached_step) == ("killed", 5, 3, 8)
    assert first.failure is not None and first.failure.signature == "process gone"
    assert (second.outcome, second.start_step, second.end_step) == ("succeeded", 5, 10)
    assert seen.device_seconds["lost"] > 0
    assert [commit.step for commit in seen.commits] == [5, 10]
    assert assay.run("digits-first").curve("loss").steps.tolist() == list(range(1, 11))


def test_the_first_step_that_is_logged_says_where_a_loop_resumed(home: Home) -> None:
    killed_after(range(1, 9))
    with record("digits/first") as run:
        run.log(7, {"loss": 1.0})
    first, second = view(home).attempts
    assert (first.end_step, first.lost_steps, second.start_step) == (6, 2, 6)


def test_a_run_that_begins_from_nothing_has_lost_all_before(home: Home) -> None:
    killed_after(range(1, 9))
    with record("digits/first") as run:
        run.log(1, {"loss": 1.0})
    assert view(home).attempts[0].lost_steps == 8


def test_a_failure_has_the_signature_of_its_exception(home: Home) -> None:
    def step() -> None:
        raise ValueError(f"at {time.time()}")

    for _ in range(2):
        with pytest.raises(ValueError), record("digits/first") as run:
            run.log(1, {})
            step()
    failures = [attempt.failure for attempt in view(home).attempts]
    assert next(failure.signature for failure in failures if failure).startswith("ValueError in ")
    assert len({failure.signature for failure in failures if failure}) == 1
    assert "test_recording.py" in (home.run_dir("digits-first") / str(failures[0] and failures[0].file)).read_text()


def test_ctrl_c_stops_and_does_not_fail(home: Home) -> None:
    with pytest.raises(KeyboardInterrupt), record("digits/first") as run:
        train(run, range(1, 3))
        raise KeyboardInterrupt
    assert view(home).status == "preempted"


def test_checkpoints_are_audited_and_rows_are_never_proved(home: Home, tmp_path: Path) -> None:
    out, assay_at = tmp_path / "out", AssayAt(home.folder)
    with record("digits/first") as run:
        train(run, range(1, 16), folder=out)
    printed = assay_at("runs", "audit", "digits-first", "--deep", code=3).out
    assert "INCOMPLETE" in printed and "rows: not observed (60 counted); 3 checkpoints whole" in printed
    shown = assay.run("digits-first").audit(deep=True)
    assert str(shown) == printed and shown.facts.verdict == "incomplete"
    assert "checkpoints whole" in shown.save(tmp_path / "audit.html").read_text()
    for file in (out / "step-5").iterdir():
        file.unlink()
    (out / "step-5").rmdir()
    report, *_ = audit_and_record(home, "digits-first", check_shards=True, weights="all")
    assert (report.verdict, report.whole_checkpoints) == ("incomplete", 2)
    assert any("step 5 is not there any more" in text for text in report.not_checked)
    (out / "step-10" / "optimizer.pt").write_bytes(b"changed")
    printed = assay_at("runs", "audit", "digits-first", "--deep", code=1).out
    assert "FAIL" in printed and "step 10 has changed" in printed


def test_recorded_runs_are_compared_by_what_they_logged_and_what_is_not_known_is_said(home: Home) -> None:
    for name, lr in (("digits/first", 0.1), ("digits/second", 0.2)):
        with record(name, config={"lr": lr}) as run:
            for step in (1, 2):
                run.log(step, {"loss": lr / step, "eval_loss": 2 * lr / step})
    report = assay.compare("digits-first", "digits-second")
    (compared,) = report.facts
    assert (compared.verdict, compared.num_rows, compared.metric.name) == ("undecided", 0, "validation_loss")
    assert (compared.difference.value, compared.difference.low) == (pytest.approx(0.1), None)
    assert [warning.rule for warning in compared.warnings] == ["rows not observed"]
    assert [(change.key, change.candidate) for change in compared.changes] == [("params.lr", 0.2)]
    for text in (
        "rows not observed",
        "weights ",
        "not known",
        "digits-first and digits-second validated",
    ):
        assert text in str(report)
    with record("digits/silent") as run:
        run.log(1, {"accuracy": 0.5})
    with pytest.raises(assay.AssayError, match="have not both logged validation_loss or loss"):
        assay.compare("digits-first", "digits-silent")


def test_a_short_run_has_device_time_that_can_be_read(home: Home) -> None:
    with record("digits/first") as run:
        train(run, range(1, 3))
    shown = AssayAt(home.folder)("runs", "goodput", "digits-first").out
    assert "0.0000" not in shown and re.search(r"^held +[\d.]+ s$", shown, re.M)


def test_a_checkpoint_that_the_script_replaced_or_deleted_is_no_longer_among_those_that_exist(
    home: Home, tmp_path: Path
) -> None:
    with record("digits/first") as run:
        for step in (5, 10):
            save(tmp_path / "last", step)
            run.log(step, {})
            run.checkpoint(tmp_path / "last", step)
            time.sleep(0.2)
    assert [(commit.step, commit.is_retired) for commit in view(home).commits] == [(5, True), (10, False)]


def test_a_checkpoint_that_a_killed_attempt_did_not_record_is_adopted_by_the_next_one(
    home: Home, tmp_path: Path
) -> None:
    killed_after(range(1, 8))
    save(tmp_path / "step-5", 5)
    with record("digits/first", start_step=5) as run:
        run.recover_checkpoint(tmp_path / "step-5", 5)
        train(run, range(6, 11), folder=tmp_path)
    run_id = run.run_id
    shown = AssayAt(home.folder)("runs", "show", run_id, "--json")
    assert [commit["step"] for commit in json.loads(shown.out)["commits"]] == [5, 10]


def test_hooks_of_torch_give_phases_and_steps(home: Home) -> None:
    model, values = torch.nn.Linear(2, 1), torch.ones(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record("digits/first", start_step=0) as run:
        run.watch(model, optimizer)
        for _ in range(4):
            model(values).sum().backward()
            optimizer.step()
            time.sleep(0.01)
        model.eval()
        model(values)
        time.sleep(0.01)
    seen = view(home)
    assert seen.step == 4
    assert min(seen.device_seconds[phase] for phase in ("startup", "data", "compute", "evaluation")) > 0
    assert seen.device_seconds["data"] > 0.03


def test_a_forked_process_records_nothing(home: Home) -> None:
    with record("digits/first") as run:
        run.log(1, {"loss": 1.0})

        def work() -> None:
            run.log(2, {"loss": 2.0})
            run.end()

        assert in_fork(work) == 0
        assert view(home).metrics["loss"].num_points == 1
    assert view(home).status == "succeeded"


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"name": 3}, "name=3: expected 'PROJECT/RUN'"),
        ({"config": ["lr"]}, r"config=\['lr'\]: expected a dictionary"),
        ({"devices": "2"}, "devices='2': expected a whole number"),
        ({"num_steps": 10.5}, "num_steps=10.5: expected a whole number"),
        ({"start_step": "last"}, "start_step='last': expected a whole number"),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused_before_anything_is_written(
    home: Home, arguments: dict[str, object], what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        record(**{"name": "digits/first", **arguments})
    assert not home.folder.exists()


@pytest.mark.parametrize("number", [np.int64(4), 4.0, np.float32(4)])
def test_a_whole_number_of_another_type_is_one(home: Home, number: Any) -> None:
    with record("digits/first", devices=np.int32(1), num_steps=number, start_step=number) as run:
        run.log(5, {"loss": 1.0})
    seen = view(home)
    assert (seen.total_steps, seen.step, seen.attempts[0].start_step, seen.status) == (5, 5, 4, "succeeded")


def test_a_name_in_use_is_refused_before_anything_is_written(home: Home) -> None:
    with pytest.raises(ConfigError, match="is not a valid name"):
        record("bad\nname")
    assert not home.folder.exists()
    ready, release = os.pipe(), os.pipe()

    def hold() -> None:
        record("digits/first")
        os.write(ready[1], b"x")
        os.read(release[0], 1)

    if (pid := os.fork()) == 0:
        with suppress(BaseException):
            hold()
        os._exit(0)
    os.read(ready[0], 1)
    with pytest.raises(ConfigError, match=f"is being recorded by process {pid}"):
        record("digits/first")
    os.write(release[1], b"x")
    os.waitpid(pid, 0)
    assert len(list((home.run_dir("digits-first") / "attempts").iterdir())) == 1


@pytest.mark.parametrize("seed", range(12))
def test_a_run_killed_anywhere_is_readable_and_goes_on(home: Home, tmp_path: Path, seed: int) -> None:
    after_s = random.Random(seed).uniform(0.0, 0.06)

    def work() -> None:
        signal.setitimer(signal.ITIMER_REAL, after_s)  # SIGALRM ends a process without any handler, as SIGKILL does
        run = record("digits/first")
        train(run, range(1, 10_000), folder=tmp_path / "out", checkpoint_every=3)

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert in_fork(work) == signal.SIGALRM
    with record("digits/first") as run:
        train(run, range(1, 4))
    seen = view(home)
    assert seen.status == "succeeded"
    assert seen.attempts[-1].end_step == 3
    assert all(attempt.outcome == "killed" for attempt in seen.attempts[:-1])


def test_a_run_is_running_for_the_process_that_records_it(home: Home) -> None:
    with record("digits/first") as run:
        train(run, range(1, 8))
        seen, listed = view(home), json.loads(AssayAt(home.folder)("runs", "list", "--json").out)[0]
        assert (seen.status, seen.step, seen.total_steps) == ("running", 7, 7)
        assert (listed["status"], listed["step"], listed["total_steps"]) == ("running", 7, 7)
    assert view(home).status == "succeeded"


def test_a_run_that_goes_on_after_its_end_has_as_many_steps_as_it_makes(home: Home) -> None:
    for last in (3, 8):
        with record("digits/first") as run:
            train(run, range(last - 2, last + 1))
            seen, listed = view(home), json.loads(AssayAt(home.folder)("runs", "list", "--json").out)[0]
            assert (seen.step, seen.total_steps, listed["step"], listed["total_steps"]) == (last, last, last, last)
    assert view(home).total_steps == 8


def test_rows_of_a_watched_loop_are_recorded_at_each_step(home: Home) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters())
    with record("digits/first") as run:
        run.watch(model, optimizer)
        for step in range(1, 6):
            model(torch.ones(3, 2)).sum().backward()
            optimizer.step()
            run.log(step, {"loss": 1.0}, rows=3)
    seen = view(home)
    assert seen.metrics["rows"].num_points == seen.metrics["loss"].num_points == 5
    assert seen.speed.rows_per_s is not None


def test_what_is_not_known_of_a_run_is_said_no_more_once_it_is(home: Home) -> None:
    def unknown() -> tuple[str, ...]:
        imported = view(home).imported
        assert imported is not None
        return imported.left_out

    with record("digits/first") as run:
        assert [text.split(":")[0].split(",")[0] for text in unknown()] == [
            "which rows were read", "data loading is part of compute"
        ]  # fmt: skip
        run.phase("data")
        assert [text.split(":")[0] for text in unknown()] == ["which rows were read"]
    assert [text.split(":")[0] for text in unknown()] == ["which rows were read"]


def test_a_recording_that_begins_again_in_its_process_ends_the_one_before(
    home: Home, capfd: pytest.CaptureFixture[str]
) -> None:
    train(record("digits/first"), range(1, 4))
    assert capfd.readouterr().err == ""
    with record("digits/first", start_step=3) as run:
        train(run, range(4, 6))
    assert "run 'digits-first' begins attempt 2, after attempt 1: failed at step 3." in capfd.readouterr().err
    seen = view(home)
    assert [attempt.outcome for attempt in seen.attempts] == ["failed", "succeeded"]
    assert "was begun again in the same process" in seen.attempts[0].reason


def test_other_ranks_join_the_attempt_of_rank_0_and_leave_their_failure(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")

    def other_rank() -> None:
        monkeypatch.setenv("RANK", "1")
        run = record("digits/first")
        train(run, range(1, 4))
        run.end(ValueError("bad row"))

    def first_rank() -> None:
        first = record("digits/first")
        assert in_fork(other_rank) == 0
        train(first, range(1, 4))
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_fork(first_rank) == signal.SIGKILL
    with record("digits/first", start_step=3) as run:
        run.log(4, {})
    seen = view(home)
    killed = seen.attempts[0]
    assert (killed.world_size, killed.outcome) == (2, "failed")
    assert killed.failure is not None and (killed.failure.rank, killed.failure.text) == (1, "ValueError: bad row")
    assert set(seen.metrics) == {"loss", "rows", "step_s"}


def test_a_rank_of_the_next_start_does_not_join_an_attempt_that_was_killed(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    killed_after(range(1, 3))

    def restarted_rank() -> None:
        request = RecordRequest("digits/first", "python", {}, 2, None, 1, ())
        assert join_attempt(home, request, after=0) is None

    assert in_fork(restarted_rank) == 0


def test_rank_0_names_the_rank_that_failed_and_not_its_lost_peer(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    first = record("digits/first")

    def other_rank() -> None:
        monkeypatch.setenv("RANK", "1")
        record("digits/first").end(ValueError("bad row"))

    assert in_fork(other_rank) == 0
    first.end(RuntimeError("[/gloo/transport] Connection closed by peer"))
    (attempt,) = view(home).attempts
    assert attempt.failure is not None
    assert (attempt.failure.rank, attempt.failure.text) == (1, "ValueError: bad row")
