"""From a ledger to the one view of a run, which screens, pages and `--json` share."""

import json
import os
import socket
from dataclasses import replace

import numpy as np
import pytest

from assay.base.errors import ConfigError
from assay.records.commit import CommitQuarantined, RunFinished
from assay.records.evaluation import Estimate, Measured, Metric, ScoreEvaluation, ScoreMetrics
from assay.records.goodput import USEFUL
from assay.records.launch import Launch
from assay.records.processor import Processor
from assay.reporting.documents.render import render_document
from assay.reporting.documents.runs.run import run_document
from assay.reporting.documents.runs.run_verdict import run_tiles, run_verdict
from assay.reporting.views.runs import run_list
from assay.reporting.views.runs.run import LISTED_METRICS, run_view
from assay.reporting.views.runs.run_list import Selection, run_lines
from assay.reporting.views.runs.run_page import run_page as gathered
from assay.store.home import Home
from assay.store.ledger.goodput import goodput_of
from assay.store.metrics.fold import append_points
from assay.store.metrics.segment import Points, SegmentHeader, SegmentWriter, segment_path
from clocks import ManualClock


@pytest.fixture
def ledger(tmp_path, life):
    with Home.at(tmp_path).open_ledger() as opened:
        opened.record_run(life.run)
        yield opened


def with_damage(life):
    """The last commit was found cut short."""
    commit = life.entries[-2]
    damaged = CommitQuarantined(attempt=2, folder=commit.folder, step=commit.step, reason="a file was cut short")
    return life._replace(entries=[*life.entries[:-1], damaged])


def test_what_the_ledger_knows_is_in_the_view(ledger, life):
    life.record(ledger)
    view = run_view(ledger, life.run.run_id[:8])
    assert [attempt.started for attempt in view.attempts] == [attempt.started_s for attempt in life.attempts]
    assert [commit.step for commit in view.commits] == [entry.step for entry in life.entries[:-1]]
    assert view.audit == life.audit
    assert view.held_s() == pytest.approx(sum(phase.held_s for phase in life.phases))
    of_attempts = [sum(attempt.device_seconds.values()) for attempt in view.attempts]
    assert sum(of_attempts) == pytest.approx(view.held_s()) and not any(view.evaluation_device_seconds.values())


def test_a_run_is_finished_only_when_its_log_says_so(ledger, life):
    life._replace(attempts=life.attempts[:1], entries=life.entries[:-1]).record(ledger)
    assert run_view(ledger, life.run.run_id).status == "failed"
    finished = RunFinished(attempt=2, step=400, weights_digest="5f0c" * 16)
    ledger.record_log_entries(life.run.run_id, {len(life.entries): finished})
    assert run_view(ledger, life.run.run_id).status == "succeeded"


def test_a_run_that_has_only_been_asked_for_has_a_page(ledger, life):
    page = gathered(ledger, life.run.run_id)
    assert run_verdict(page.view).tone == "open"
    assert "no commit yet" in render_document(run_document(page, now_s=0.0))


def test_an_unknown_run_is_refused_by_name(ledger):
    with pytest.raises(ConfigError, match="nothing-like-it"):
        run_view(ledger, "nothing-like-it")


def test_a_damaged_commit_is_not_the_last_one(ledger, life):
    with_damage(life._replace(evaluation=None)).record(ledger)
    page = gathered(ledger, life.run.run_id)
    assert page.view.last_commit() == page.view.commits[-2]
    assert page.view.step == life.entries[-3].step
    assert "a file was cut short" in render_document(run_document(page, now_s=0.0))


def test_the_list_of_runs_and_the_view_of_each_say_the_same(ledger, life):
    with_damage(life).record(ledger)
    planned = life.run.model_copy(update={"run_id": "planned", "num_steps": 400})
    ledger.record_run(planned)
    launch = Launch(
        run_id="planned", number=1, launcher="slurm", job="12", host="login", started_by="ana", started_s=0.0,
        world_size=2, log="job-12.log",
    )  # fmt: skip
    ledger.record_launch(launch)
    assert [item.job for item in run_view(ledger, "planned").launches] == ["12"]
    for line in run_lines(ledger):
        shown = json.loads(run_view(ledger, line.run_id).to_json())
        listed = json.loads(line.to_json())
        assert len(shown.pop("attempts")) == listed.pop("attempts")
        held_s = sum(shown["device_seconds"].values())
        found = (shown["evaluation"] or {"overall": {"auc": None}})["overall"]["auc"]
        measured = (None, None, None) if found is None else ("AUC", found["value"], found["value"])
        assert tuple(map(listed.pop, ("metric", "value", "auc"))) == measured
        assert listed.pop("higher_is_better") is (None if found is None else True)
        assert listed.pop("device_hours") == pytest.approx(held_s / 3600)
        assert (listed.pop("written"), listed.pop("written_by"), listed.pop("is_stale")) == (None, "", False)
        evaluated_s = sum(shown["evaluation_device_seconds"].values())
        assert listed.pop("evaluation_hours") == pytest.approx(evaluated_s / 3600)
        assert listed.pop("started") == (None if not shown["launches"] else "Slurm job 12")
        assert (listed.pop("forked_from"), listed.pop("note")) == (None, None)
        assert listed.pop("trained_by") == shown["recipe"]["method"]["type"]
        listed.pop("loss")
        assert listed == {key: shown[key] for key in listed}
    lines = {line.run_id: line for line in run_lines(ledger)}
    assert (lines["planned"].total_steps, lines["planned"].auc) == (400, None)
    assert lines[life.run.run_id].auc == life.evaluation.overall.auc.value


@pytest.mark.parametrize(("higher_is_better", "best"), [(True, "high"), (False, "low")])
def test_runs_sorted_by_value_begin_with_the_best_of_their_metric(ledger, life, higher_is_better, best) -> None:
    metric = Metric(name="squared_error", unit="squares", higher_is_better=higher_is_better)
    for run_id, value in (("low", 1.0), ("high", 2.0)):
        ledger.record_run(life.run.model_copy(update={"run_id": run_id}))
        measured = (Measured(metric=metric, estimate=Estimate(value=value)),)
        evaluation = ScoreEvaluation(
            run_id=run_id, step=1, weights_digest="w", dataset_fingerprint="d", split="validation",
            overall=ScoreMetrics(num_rows=4, measured=measured), slices=(), predictions_sha256="",
        )  # fmt: skip
        ledger.record_evaluation(evaluation)
    found = [line.run_id for line in run_lines(ledger, Selection(sort="value"))]
    assert found[0] == best and found[-1] == life.run.run_id, "what has no value comes last"


def test_the_view_of_a_run_and_its_account_agree_on_goodput(ledger, life):
    life.record(ledger)
    view, account = run_view(ledger, life.run.run_id), goodput_of(ledger, [life.run])
    assert view.goodput == pytest.approx(account.goodput())
    assert view.goodput == pytest.approx(sum(view.device_seconds[phase] for phase in USEFUL) / view.held_s())
    assert 0 < view.device_seconds["data"] < view.held_s(), "or the phases of a step could be mistaken"
    (tile,) = (run_tile for run_tile in run_tiles(view) if run_tile.name == "device time of training")
    assert tile.note == f"goodput {account.goodput():.1%}"


def trained_on_gpu(ledger, life, tmp_path, card):
    """Record a run of two committed steps on a card, whose first step had no model FLOPs yet."""
    processor = Processor(model=card, instructions="", torch="2.13.0")
    run = life.run.model_copy(update={"run_id": "gpu", "run_dir": str(tmp_path / "gpu")})
    attempt = life.attempts[0].model_copy(update={"run_id": "gpu", "processor": processor})
    ledger.record_run(run)
    ledger.record_attempt(attempt)
    clock = ManualClock(attempt.started_s)
    writer = SegmentWriter(
        segment_path(tmp_path / "gpu", attempt.attempt, 0), run_id="gpu", attempt=1, rank=0, clock=clock
    )
    seen = {"model_flops": 4e13, "gpu_memory_peak_bytes": 2.0**31}
    writer.log(1, {"loss": 1.0, "step_s": 5.0, "tokens": 10})
    writer.log(2, {"loss": 1.0, "step_s": 0.1, "tokens": 10, **seen})
    writer.log(3, {"loss": 1.0, "step_s": 0.3, "tokens": 10, **seen, "host_waits": 4.0})
    writer.close()
    return gathered(ledger, "gpu")


def test_a_gpus_use_is_its_model_flops_over_the_cards_rate(ledger, life, tmp_path):
    page = trained_on_gpu(ledger, life, tmp_path, "NVIDIA H200")
    use = page.view.gpu_use
    assert use.model_flops_per_s == pytest.approx(8e13 / 0.4)
    assert (use.dense_flops_per_s, use.mfu) == (989e12, pytest.approx(200 / 989))
    assert (use.memory_peak_bytes, use.host_waits) == (2**31, 4.0)
    text = render_document(run_document(page, now_s=0.0))
    assert "20.2%" in text and "200 TFLOP/s of model FLOPs, of 989 in bfloat16" in text and "waits 4 times" in text


def test_a_card_that_is_not_listed_has_flops_and_no_mfu(ledger, life, tmp_path):
    page = trained_on_gpu(ledger, life, tmp_path, "Example 1000")
    assert page.view.gpu_use.mfu is None and page.view.gpu_use.model_flops_per_s > 0
    assert "the card&#39;s rate is not known" in render_document(run_document(page, now_s=0.0))


def test_numbers_that_json_cannot_write_are_null(run_page):
    speed = run_page.view.speed.model_copy(update={"rows_per_s": float("inf"), "steps_per_s": float("nan")})
    page = replace(run_page, view=run_page.view.model_copy(update={"speed": speed}))
    assert json.loads(page.view.to_json(), parse_constant=pytest.fail)["speed"] == {
        "steps_per_s": None,
        "rows_per_s": None,
        "tokens_per_s": None,
    }


def test_a_ledger_that_is_older_than_the_run_s_folder_says_when_and_by_whom_it_was_written(ledger, life, tmp_path):
    run = life.run.model_copy(update={"run_dir": str(tmp_path / "run")})
    (tmp_path / "run" / "attempts").mkdir(parents=True)
    life.record(ledger)
    ledger.record_run(run)
    (line,) = run_lines(ledger)
    assert (line.written, line.written_by, line.is_stale) == (None, "", False)
    ledger.record_write(run.run_id)
    (line,) = run_lines(ledger)
    assert line.written and socket.gethostname() in line.written_by and str(os.getpid()) in line.written_by
    assert not line.is_stale
    os.utime(tmp_path / "run" / "attempts", times=(line.written + 60, line.written + 60))
    (line,) = run_lines(ledger)
    assert line.is_stale
    text = line.stale_text(line.written + 240)
    assert "4 min" in text and line.written_by in text and "--rebuild" in text


def test_a_run_that_goes_on_and_of_which_nobody_writes_here_is_stale(ledger, life, monkeypatch):
    life._replace(attempts=life.attempts[:1], entries=life.entries[:-2]).record(ledger)
    attempt = life.attempts[0].model_copy(update={"ended_s": None, "end_step": None, "outcome": "running"})
    ledger.record_attempt(attempt)
    ledger.record_write(life.run.run_id)
    (line,) = run_lines(ledger)
    assert line.status in ("running", "unknown") and not line.is_stale
    monkeypatch.setattr(run_list, "SILENT_WRITER_S", -1.0)
    assert run_lines(ledger)[0].is_stale


def test_of_many_metrics_pages_read_the_main_ones_and_json_has_all(ledger, life):
    life.record(ledger)
    run_id, points = life.run.run_id, Points(np.array([1, 2]), np.zeros(2), np.array([0.5, 0.25]))
    names = [f"layer/{index:04d}" for index in range(600)] + ["loss", "validation_auc", "tokens", "reward_a"]
    header = SegmentHeader(run_id, 1, 0, 0.0, 0.0, "host", 1, ())
    with ledger.writing() as connection:
        append_points(connection, run_id, header, dict.fromkeys(names, points))
    main, whole = gathered(ledger, run_id, is_brief=True), run_view(ledger, run_id, has_all_metrics=True)
    assert list(whole.metrics) == sorted(names) and whole.num_metrics == main.view.num_metrics == len(names)
    assert set(json.loads(whole.to_json())["metrics"]) == set(names)
    listed = [*names[:LISTED_METRICS], "loss", "reward_a", "tokens", "validation_auc"]
    assert main.view.metrics == {name: whole.metrics[name] for name in listed}
    assert set(main.curves) == {"loss", "validation_auc", "reward_a"}
    assert "560 more metrics" in render_document(run_document(main, now_s=0.0))
    assert "more metrics" not in render_document(run_document(replace(main, view=whole), now_s=0.0))
