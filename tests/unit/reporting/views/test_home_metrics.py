"""The metrics of a home equal what commands and API print, in whatever order things happen, and need little time."""

import json
import math
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from assay.base.clock import SystemClock, utc_text
from assay.records.commit import Commit, RunFinished
from assay.records.cursor import Cursor
from assay.records.failure import Failure
from assay.records.fine_tuning_job import PauseRequested, RunLeft
from assay.records.launch import Launch
from assay.records.run import Attempt, PhaseSeconds, Run
from assay.reporting.views.home_metrics import HomeMetrics
from assay.serving.openai.app_state import AppState
from assay.serving.queue.worker_registry import WorkerRegistration
from assay.store.home import Home
from assay.store.ledger import tables
from assay.store.ledger.ledger import Ledger, upsert
from assay.store.ledger.open_ledger import OpenLedger
from assay.store.ledger.writer import mark_missed
from assay.store.objects import open_store
from in_process import AssayAt
from ledger_rows import copy, drop_tables, empty
from machine import MACHINE
from served import http_of
from tiny_recipe import tiny_recipe
from unit.dashboard.accepted import accept_batch, accept_eval_run, accept_job, launch, validate

NOW_S = time.time()
Samples = dict[tuple[str, ...], float]


class Scraped:
    """A home, and what a scraper reads of it."""

    def __init__(self, folder: Path, ledger: str | None = None) -> None:
        self.home = Home.at(folder / "runs", ledger)
        self.home.folder.mkdir(exist_ok=True)
        self.api = AppState.of(open_store(str(self.home.api)), {}, SystemClock())
        self.ledger = OpenLedger(self.home)
        self._registry = CollectorRegistry()
        self._registry.register(HomeMetrics(self.home, self.api, self.ledger, lambda: 2))
        self.assay = AssayAt(self.home.folder)

    def metrics(self) -> Samples:
        """Return each sample by its name and the values of its labels."""
        text = generate_latest(self._registry).decode()
        families = [*text_string_to_metric_families(text)]
        assert all(family.documentation and family.type == "gauge" for family in families)
        return {
            (sample.name.removeprefix("assay_"), *sample.labels.values()): sample.value
            for family in families
            for sample in family.samples
        }

    def by(self, name: str) -> dict[str, float]:
        """Return a metric by its only label, without zeros."""
        return {key[1]: value for key, value in self.metrics().items() if key[0] == name and value}

    def printed(self, *arguments: object) -> Any:
        return json.loads(self.assay(*arguments, "--json").out)


@pytest.fixture
def scraped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scraped:
    # A status depends on the age of the run, and this module may have been imported long ago.
    monkeypatch.setitem(globals(), "NOW_S", time.time())
    return Scraped(tmp_path)


def run_of(home: Home, run_id: str, **fields: object) -> Run:
    folder = home.run_dir(run_id)
    folder.mkdir(exist_ok=True)
    values = {
        "run_id": run_id, "created_s": NOW_S - 5000.0, "recipe": tiny_recipe(), "recipe_sha256": "",
        "dataset_fingerprint": "", "code_version": "", "run_dir": str(folder), "store_url": str(folder), "num_steps": 9,
    }  # fmt: skip
    run = Run.model_validate(values | fields)
    (folder / "run.json").write_text(run.to_json())
    return run


def record_attempt(ledger: Ledger, run_id: str, number: int, outcome: str, *, failure: str | None = None) -> None:
    started_s = NOW_S - 4000.0 + 100.0 * number
    failures = failure and Failure(
        failure_kind=failure, run_id=run_id, attempt=number, signature="s", text='it said "no"\n\\'
    )
    attempt = Attempt(
        run_id=run_id, attempt=number, world_size=2, start_step=0, started_s=started_s, outcome=outcome,
        ended_s=None if outcome == "running" else started_s + 60.0, end_step=None if outcome == "running" else 4,
        failure=failures or None, **MACHINE,
    )  # fmt: skip
    ledger.record_attempt(attempt)
    for rank in range(0 if outcome == "running" else 2):
        seconds = {"startup": 5.0, "compute": 30.0 + number, "lost": 10.0, "stalled": 2.0, "idle": 13.0 - number}
        ledger.record_phase_seconds(
            PhaseSeconds(run_id=run_id, attempt=number, rank=rank, held_s=60.0, seconds=seconds)
        )


def commit_at(step: int, committed_s: float) -> Commit:
    return Commit(
        attempt=1, world_size=2, step=step, cursor=Cursor(epoch=0, step_in_epoch=step), committed_s=committed_s,
        folder=f"checkpoints/{step}", files=(), weights_digest="", receipts_from_step=0, rows_trained=1,
    )  # fmt: skip


def record_runs(home: Home, ledger: Ledger) -> None:
    """A run of each kind, and one that must not count."""
    for run_id, outcomes in {
        "done": ("killed", "preempted", "succeeded"),
        'od"d\\n': ("failed",),
        "open": ("killed", "running"),
        "drill-x": ("killed", "succeeded"),
    }.items():
        name = run_id.replace('"', "-").replace("\\", "-")
        ledger.record_run(run_of(home, name, is_drill=run_id == "drill-x"))
        for number, outcome in enumerate(outcomes, 1):
            failure = {"killed": "killed_by_signal", "failed": "out_of_memory"}.get(outcome)
            record_attempt(ledger, name, number, outcome, failure=failure)
        if outcomes[-1] == "succeeded":
            last = len(outcomes)
            ledger.record_log_entries(name, {0: RunFinished(attempt=last, step=9, weights_digest="")})
    ledger.record_phase_seconds(
        PhaseSeconds(run_id="done", attempt=0, rank=0, held_s=90.0, seconds={"evaluation": 90.0})
    )


def check_equal_to_commands(scraped: Scraped) -> None:
    """Compare the metrics with `runs list`, `runs goodput` and `runs goodput --by`."""
    lines = scraped.printed("runs", "list")
    assert scraped.by("runs") == Counter(line["status"] for line in lines)
    assert sum(scraped.by("attempts").values()) == sum(line["attempts"] for line in lines)
    shown = [scraped.printed("runs", "show", line["run_id"])["attempts"] for line in lines]
    assert scraped.by("attempts") == Counter(attempt["outcome"] for attempts in shown for attempt in attempts)
    goodput, total = scraped.printed("runs", "goodput"), scraped.printed("runs", "goodput", "--by", "day")["total"]
    kinds = [(end["failure"] or {"failure_kind": "none"})["failure_kind"] for end in goodput["interruptions"]]
    assert scraped.by("interruptions") == Counter(kinds)
    for use, seconds in scraped.by("device_seconds").items():
        assert math.isclose(seconds, total[f"{use}_device_hours"] * 3600), use
    held_s = sum(scraped.by("device_seconds").get(use, 0.0) for use in ("useful", "lost", "other"))
    assert math.isclose(held_s, goodput["held_device_s"])


def test_metrics_of_runs_equal_what_commands_print_after_each_change(scraped: Scraped) -> None:
    with scraped.home.open_ledger() as ledger:
        record_runs(scraped.home, ledger)
        check_equal_to_commands(scraped)
        assert scraped.by("interruptions") == {"killed_by_signal": 2, "none": 1, "out_of_memory": 1}
        record_attempt(ledger, "open", 2, "failed", failure="hang")
        check_equal_to_commands(scraped)
        assert scraped.by("interruptions")["hang"] == 1
        for name in ("evalrun-1", "open"):
            ledger.record_phase_seconds(
                PhaseSeconds(run_id=name, attempt=0, rank=0, held_s=20.0, seconds={"evaluation": 20.0})
            )
        check_equal_to_commands(scraped)
        assert scraped.by("device_seconds")["evaluation"] == 130.0
        ledger.record_log_entries("open", {0: RunFinished(attempt=2, step=9, weights_digest="")})
        check_equal_to_commands(scraped)
        ledger.forget("done")
        check_equal_to_commands(scraped)


def test_a_ledger_in_postgresql_gives_the_same_metrics(scraped: Scraped, tmp_path: Path, postgres_url: str) -> None:
    other = Scraped(tmp_path, postgres_url)
    with scraped.home.open_ledger() as ledger, other.home.open_ledger() as copied:
        record_runs(scraped.home, ledger)
        ledger.record_log_entries("open", {0: commit_at(1, NOW_S - 60.0)})
        empty(copied)
        copy(ledger, copied)
    of_ledger = [
        {key: value for key, value in item.metrics().items() if not key[0].startswith("disk")}
        for item in (scraped, other)
    ]
    assert of_ledger[0] == of_ledger[1] and of_ledger[0]["oldest_commit_timestamp_seconds",] == NOW_S - 60.0
    with other.ledger.shown(None) as opened:
        opened.close()
    drop_tables(postgres_url)


def test_the_oldest_commit_is_that_of_the_run_at_work_that_waits_longest(scraped: Scraped) -> None:
    name = "oldest_commit_timestamp_seconds"
    with scraped.home.open_ledger() as ledger:
        assert (name,) not in scraped.metrics()
        for run_id, commits in {"a": (300.0, 100.0), "b": (200.0,), "over": (900.0,)}.items():
            run = run_of(scraped.home, run_id, created_s=NOW_S - 700.0)
            ledger.record_run(run)
            record_attempt(ledger, run_id, 1, "failed" if run_id == "over" else "running")
            entries = {number: commit_at(number + 1, NOW_S - ago_s) for number, ago_s in enumerate(commits)}
            ledger.record_log_entries(run_id, entries)
        assert scraped.metrics()[name,] == NOW_S - 200.0
        (shown,) = scraped.printed("runs", "show", "b")["commits"]
        assert shown["committed"] == utc_text(NOW_S - 200.0) and scraped.by("runs") == {"running": 2, "failed": 1}
        host = {"host": "elsewhere", "process": "", "job": "1", "started_by": "me", "world_size": 1}
        ledger.record_launch(
            Launch(run_id="b", number=2, launcher="here", started_s=NOW_S - 50.0, log="", **host)
        )  # a run that was stopped for long and has just been resumed is not late
        assert scraped.metrics()[name,] == NOW_S - 100.0


def test_the_oldest_sign_of_life_is_that_of_the_run_at_work_that_is_silent_longest(scraped: Scraped) -> None:
    name = "oldest_sign_of_life_timestamp_seconds"
    with scraped.home.open_ledger() as ledger:
        for run_id, ago_s in {"a": 300.0, "b": 200.0, "over": 900.0}.items():
            ledger.record_run(run_of(scraped.home, run_id, created_s=NOW_S - 700.0))
            record_attempt(ledger, run_id, 1, "failed" if run_id == "over" else "running")
            segment = {"run_id": run_id, "path": "p", "position": "", "num_bytes": 0, "num_events": 0}
            with ledger.writing() as connection:
                upsert(connection, tables.metric_segments, [{**segment, "last_at_s": NOW_S - ago_s}])
        lines = scraped.printed("runs", "list")
        seen = min(line["last_seen"] for line in lines if line["status"] == "running")
        assert scraped.metrics()[name,] == NOW_S - 300.0 and seen == utc_text(NOW_S - 300.0)


def test_queue_and_workers_equal_the_apis_jobs(scraped: Scraped) -> None:
    api = scraped.api
    first, second, paused, left = (accept_job(api, at_s=NOW_S - ago_s) for ago_s in (90.0, 60.0, 500.0, 400.0))
    accept_batch(api, "other", at_s=NOW_S - 5.0)
    accept_eval_run(api, at_s=NOW_S - 7.0)
    for job_id in (first, left):
        validate(api, job_id, at_s=NOW_S - 80.0)
    for job_id in (first, left):
        launch(api, job_id, at_s=NOW_S - 70.0)
    api.jobs.change(left, lambda _: RunLeft(at_s=NOW_S - 30.0, lease=1, step=5))
    api.jobs.change(paused, lambda _: PauseRequested(at_s=NOW_S - 400.0))
    WorkerRegistration(api.jobs.store, api.clock, name="w", slots=3).renew()
    found = scraped.metrics()
    with http_of(api) as client:
        listed = client.get("/v1/fine_tuning/jobs").json()["data"]
    meant = {"validating_files": "waiting", "queued": "waiting", "running": "running", "paused": "paused"}
    for status, number in Counter(meant[job["status"]] for job in listed).items():
        assert found["jobs", "fine_tuning", status] == number
    assert found["jobs", "fine_tuning", "waiting"] == 2 and found["jobs", "batch", "waiting"] == 1
    assert found["queue_oldest_timestamp_seconds", "fine_tuning"] == NOW_S - 60.0, f"{second} has waited longest"
    assert found["queue_oldest_timestamp_seconds", "eval_run"] == NOW_S - 7.0
    assert (found["workers",], found["worker_slots",], found["event_streams",]) == (1, 3, 2)


def test_a_ledger_that_is_gone_or_behind_is_a_metric_and_the_rest_stays(scraped: Scraped) -> None:
    with scraped.home.open_ledger() as ledger:
        record_runs(scraped.home, ledger)
    mark_missed(scraped.home, "done")
    accept_job(scraped.api)
    assert scraped.metrics()["ledger_missed_runs",] == 1
    file = scraped.home.ledger_file()
    moved = [path.rename(path.with_name(f"away-{path.name}")) for path in scraped.home.folder.glob("ledger.db*")]
    found = scraped.metrics()
    assert found["ledger_up",] == 0 and not any(key[0] in ("runs", "attempts") for key in found)
    assert found["store_up",] == 1 and found["jobs", "fine_tuning", "waiting"] == 1 and not file.exists()
    for path in moved:
        path.rename(path.with_name(path.name.removeprefix("away-")))
    assert scraped.metrics()["ledger_up",] == 1 and scraped.by("runs")["succeeded"] == 1


def test_no_label_has_a_name_that_somebody_chose(scraped: Scraped) -> None:
    with scraped.home.open_ledger() as ledger:
        before = {*scraped.metrics()}
        record_runs(scraped.home, ledger)
    accept_job(scraped.api, 'evil"{x="y"} 1', model='evil"\n{x="y"} 1')
    chosen = {key for key in {*scraped.metrics()} - before if len(key) > 1}
    assert chosen == {("queue_oldest_timestamp_seconds", "fine_tuning")}


@pytest.mark.slow
def test_a_scrape_of_a_thousand_runs_takes_less_than_50_ms_of_cpu(scraped: Scraped) -> None:
    with scraped.home.open_ledger() as ledger:
        for number in range(1000):
            ledger.record_run(run_of(scraped.home, f"run-{number:04}"))
            record_attempt(ledger, f"run-{number:04}", 1, "succeeded")
            if number % 20:
                finished = RunFinished(attempt=1, step=9, weights_digest="")
                ledger.record_log_entries(f"run-{number:04}", {0: finished})
        scraped.metrics()
        costs_s = []
        for _ in range(5):
            ledger.record_write(f"run-{random.randrange(1000):04}")
            began_s = time.thread_time()
            generate_latest(scraped._registry)
            costs_s.append(time.thread_time() - began_s)
    assert min(costs_s) < (0.05 if os.environ.get("CI") is None else 0.1)
