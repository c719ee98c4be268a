"""What to look at first: what was planted in a fleet is found, with what it cost, the dearest first."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from assay.base.errors import ConfigError
from assay.cli.main import main
from assay.records.commit import RunFinished
from assay.records.failure import Failure
from assay.records.run import Attempt, PhaseSeconds, Run
from assay.records.triage_overview import Finding
from assay.reporting.charts.triage_figures import rates_figure
from assay.reporting.document import Document
from assay.reporting.documents.render import render_document
from assay.reporting.documents.triage import fleet_document
from assay.reporting.terminal.document import print_document
from assay.reporting.views.runs.run import run_view
from assay.reporting.views.triage_statements import finding_certainty, finding_next, finding_text, triage_text
from assay.store.home import Home
from assay.store.ledger.goodput import goodput_of
from assay.triage.attempts.ledger import failure_costs_s
from assay.triage.overview import FEW_RUNS, Fleet, triage_ledger
from fleet_ledger import recorded_fleet
from machine import MACHINE

NUM_RUNS, RISE_AT = 400, 240
DAYS = (399 + (100 * 1.3 + 50) / 3600) / 24


def looked_at(home: Home) -> Fleet:
    with home.open_ledger() as ledger:
        return triage_ledger(ledger)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Host n05 fails in 60%; from one version on steps take 30% longer; starting takes 50 s of each run."""
    home = Home.at(tmp_path_factory.mktemp("planted"))
    recorded_fleet(
        home,
        num_runs=NUM_RUNS,
        fails=lambda _, host: 0.6 if host == "n05" else 0.03,
        step_s=lambda run: 1.3 if run >= RISE_AT else 1.0,
        version_of=lambda run: "0.1+b" if run >= RISE_AT else "0.1+a",
        hosts=8,
    )
    return home


def one(found: tuple[Finding, ...], about: str) -> Finding:
    (it,) = (finding for finding in found if finding.about == about)
    return it


def test_each_planted_thing_is_found_with_what_it_cost_the_dearest_first(planted: Home) -> None:
    fleet = looked_at(planted)
    found = fleet.overview.results
    assert fleet.overview.days == pytest.approx(DAYS, rel=0.01)
    hours = [finding.device_hours_a_week or 0.0 for finding in found]
    assert hours == sorted(hours, reverse=True) and all(finding.is_confirmed for finding in found)

    spent, slower, failures = (one(found, about) for about in ("spent", "slower", "failures"))
    weeks = DAYS / 7
    assert spent.device_hours_a_week == pytest.approx(NUM_RUNS * 8 * 50 / 3600 / weeks, rel=0.01)
    assert spent.phase == "startup" and spent.share == pytest.approx(
        spent.device_hours_a_week * weeks / fleet.overview.device_hours
    )
    assert finding_next(spent) == "assay triage startup"
    # 0.3 of 1.3 of what those attempts held; their starts did not grow, so it is a little less.
    steps = (NUM_RUNS - RISE_AT) * 8 * 100 * 0.3 / 3600 / weeks
    assert steps < (slower.device_hours_a_week or 0.0) < 1.5 * steps
    assert slower.change is not None and slower.change.assigned.keys() == {"code"}
    assert slower.change.ratio == pytest.approx(1.3, abs=0.01)
    assert "due to code" in finding_text(slower, attempts=NUM_RUNS)
    cause = failures.cause
    assert cause is not None and cause.factors == {"host": "n05"}
    with planted.open_ledger() as ledger:
        failed = [item for item in ledger.attempts() if item.outcome == "failed" and item.hosts[0] == "n05"]
    excess = 1.0 - cause.elsewhere_rate / cause.rate
    assert failures.device_hours_a_week == pytest.approx(len(failed) * 8 * 5.0 / 3600 * excess / weeks), "5 s are lost"


@pytest.mark.parametrize(
    ("useful_s", "has_restart", "cost_s"), [(60.0, True, 1.5 + 0.5 + 3.0), (60.0, False, 1.5 + 0.5), (0.0, False, 9.0)]
)
def test_a_failed_attempt_costs_what_no_commit_kept_and_the_restart(
    tmp_path: Path, useful_s: float, has_restart: bool, cost_s: float
) -> None:
    home = Home.at(tmp_path / "home")
    recorded_runs(home, WILD)
    phases = {"startup": 7.0, "compute": useful_s, "lost": 1.5, "stalled": 0.5}
    with home.open_ledger() as ledger:
        (attempt,) = ledger.attempts("r0")
        again = attempt.model_copy(update={"attempt": 2, "started_s": 80.0, "ended_s": 90.0, "outcome": "succeeded"})
        seconds = [PhaseSeconds(run_id="r0", attempt=1, rank=0, held_s=69.0, seconds=phases)]
        if has_restart:
            ledger.record_attempt(again)
            seconds.append(PhaseSeconds(run_id="r0", attempt=2, rank=0, held_s=10.0, seconds={"startup": 3.0}))
        for second in seconds:
            ledger.record_phase_seconds(second)
        account = goodput_of(ledger, ledger.runs())
    found = one(looked_at(home).overview.results, "failures")
    assert (found.device_hours_a_week or 0.0) * 3600 == pytest.approx(cost_s) == account.interruptions_device_s()
    assert account.by_phase["lost"] == 1.5


def test_an_attempt_that_fails_after_the_last_step_interrupted_nothing(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    recorded_runs(home, WILD)
    with home.open_ledger() as ledger:
        (first,) = ledger.attempts("r0")
        after = [first.model_copy(update={"attempt": number, "started_s": 90.0 * number}) for number in (2, 3)]
        for attempt in after:
            ledger.record_attempt(attempt.model_copy(update={"ended_s": attempt.started_s + 9.0}))
        for number, lost_s in ((1, 2.0), (2, 4.0), (3, 9.0)):
            seconds = PhaseSeconds(
                run_id="r0", attempt=number, rank=0, held_s=20.0, seconds={"compute": 11.0, "lost": lost_s}
            )
            ledger.record_phase_seconds(seconds)
        ledger.record_log_entries("r0", {0: RunFinished(attempt=2, step=9, weights_digest="")})
        account = goodput_of(ledger, ledger.runs())
        costs_s = failure_costs_s(ledger, ledger.attempts("r0"), ledger.training_seconds())
    assert first.outcome == "failed" and costs_s == {("r0", 1): 2.0}
    assert account.interruptions_device_s() == 2.0


def test_of_less_than_a_week_the_loss_is_what_was_lost_and_no_rate(tmp_path: Path, capsys) -> None:
    home = Home.at(tmp_path / "home")
    recorded_fleet(home, num_runs=4, fails=lambda *_: 0.0)
    fleet = looked_at(home)
    found, spent = fleet.overview, one(fleet.overview.results, "spent")
    assert 3 / 24 < found.days < 4 / 24
    assert spent.device_hours_a_week == pytest.approx(fleet.spent_s["startup"] / 3600)
    assert spent.device_hours_a_week < found.device_hours
    print_document(fleet_document(fleet))
    shown = capsys.readouterr().out
    assert " on record" in shown and " in 3 h 0" in shown and "a week" not in shown
    page = render_document(fleet_document(fleet))
    assert "cost on record" in page and "cost a week" not in page


@pytest.mark.slow
def test_where_nothing_is_planted_what_stands_out_is_what_time_was_spent_on(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    recorded_fleet(home, num_runs=150, fails=lambda *_: 0.0)
    fleet = looked_at(home)
    assert [finding.about for finding in fleet.overview.results] == ["spent"]
    assert (fleet.overview.attempts, fleet.overview.failures) == (150, 0)


@pytest.mark.slow
def test_failures_that_share_nothing_are_told_without_a_cause(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    recorded_fleet(home, num_runs=150, fails=lambda *_: 0.1)
    found = one(looked_at(home).overview.results, "failures")
    assert found.cause is None and found.attempts > 0


def recorded_runs(home: Home, *failures: str | None) -> None:
    """A run for each, of ten seconds, nine of them starting; what ended it, or None."""
    with home.open_ledger() as ledger:
        for number, text in enumerate(failures):
            run_id = f"r{number}"
            ledger.record_run(
                Run(
                    run_id=run_id, created_s=0.0, recipe={"name": "tiny"}, recipe_sha256="", run_dir="",
                    dataset_fingerprint="", code_version="", store_url="", num_steps=10,
                )
            )  # fmt: skip
            failure = text and Failure(
                failure_kind="loss_not_finite",
                run_id=run_id,
                attempt=1,
                rank=0,
                step=2,
                signature=text,
                text=text,
            )
            ledger.record_attempt(
                Attempt(
                    run_id=run_id, attempt=1, world_size=1, start_step=0, started_s=0.0, ended_s=10.0,
                    end_step=5, outcome="failed" if failure else "succeeded", reason=text or "",
                    failure=failure or None, **MACHINE,
                )
            )  # fmt: skip
            ledger.record_phase_seconds(
                PhaseSeconds(run_id=run_id, attempt=1, rank=0, held_s=10.0, seconds={"startup": 9.0, "compute": 1.0})
            )


WILD = "LossNotFiniteError: the gradient's norm is not finite, at a learning rate of 100"


@pytest.mark.parametrize("failures", [(WILD,), (None, WILD), (None, None, WILD), (WILD, WILD, WILD)])
def test_of_a_few_runs_what_happened_to_them_is_first_and_of_a_failure_the_cause_is_unknown(
    tmp_path: Path, capsys, failures: tuple[str | None, ...]
) -> None:
    home = Home.at(tmp_path / "home")
    recorded_runs(home, *failures)
    last = f"r{len(failures) - 1}"
    fleet, document = looked_at(home), few_document(home)
    found, spent = (one(fleet.overview.results, about) for about in ("failures", "spent"))
    assert found.symptom is not None and (found.symptom.text, found.is_confirmed) == (WILD, False)
    assert finding_next(found) == f"assay runs show {last}" and spent.is_confirmed
    page = render_document(document)
    assert page.count(">cause unknown<") == 1 and page.count(">measured<") == 1 and ">confirmed<" not in page
    assert fleet.diagnosis is not None and fleet.diagnosis.because in fleet.overview.not_looked_at.values()
    print_document(document)
    shown = " ".join(capsys.readouterr().out.split())
    happened, lost = shown.split("What cost device time")
    assert f"The run failed: {WILD}" in happened and f"Next: assay train --from {last}@0" in happened
    assert all(f"r{number}" in happened for number in range(len(failures)))
    lost, nothing = lost.split("No finding (what failures share): ")
    assert WILD in lost and triage_text(fleet.diagnosis.because) in nothing


def few_document(home: Home, *run_ids: str) -> Document:
    with home.open_ledger() as ledger:
        fleet = triage_ledger(ledger, run_ids)
        return fleet_document(fleet, [run_view(ledger, run_id) for run_id in fleet.overview.run_ids])


def test_the_worst_of_a_few_runs_is_first_and_runs_that_are_named_are_all_that_is_looked_at(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    recorded_runs(home, None, None, WILD, *(None for _ in range(FEW_RUNS)))
    assert few_document(home).sections[0].name == "What to look at first", "of many, what cost most"
    document = few_document(home, "r0", "r2")
    assert [section.name for section in document.sections[:3]] == ["r2", "r0", "What cost device time"]
    assert document.verdict is not None and document.verdict.tone == "bad"
    assert document.verdict.sentence == "1 of 2 attempts failed."
    quiet = few_document(home, "r0", "r1").verdict
    assert quiet is not None and quiet.sentence == "No attempt failed."


def test_of_a_run_at_work_what_it_does_is_said_and_nothing_is_found(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    recorded_runs(home, None)
    with home.open_ledger() as ledger:
        (attempt,) = ledger.attempts("r0")
        ledger.record_run(ledger.run("r0").model_copy(update={"run_id": "new"}))
        ledger.record_attempt(attempt.model_copy(update={"run_id": "new", "ended_s": None, "outcome": "running"}))
    document = few_document(home, "new")
    assert document.sections[0].name == "new" and document.verdict is not None
    assert document.verdict.sentence == "No attempt failed."


def test_failures_of_several_symptoms_have_a_finding_each_and_the_rest_share_one(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    words = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta")
    recorded_runs(home, None, *(f"{word} is at fault" for word in words))
    found = [finding for finding in looked_at(home).overview.results if finding.about == "failures"]
    assert len(found) == 6 and sum(item.attempts for item in found) == len(words)


def test_runs_that_are_all_healthy_have_nothing_confirmed(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    recorded_runs(home, None, None)
    fleet = looked_at(home)
    page = render_document(fleet_document(fleet))
    assert {finding.about for finding in fleet.overview.results} == {"spent"}
    assert ">confirmed<" not in page and 'class="verdict bad"' not in page


def test_a_rise_without_a_factor_is_suspected_wherever_its_cost_puts_it(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    recorded_fleet(home, num_runs=200, fails=lambda *_: 0.0, step_s=lambda run: 3.0 if run >= 100 else 1.0)
    first, *others = looked_at(home).overview.results
    assert (first.about, first.is_confirmed, finding_certainty(first)) == ("slower", False, "suspected")
    assert first.change is not None and first.change.verdict == "unexplained"
    assert all(finding.is_confirmed for finding in others)


def test_a_host_and_all_of_its_devices_are_one(planted: Home) -> None:
    diagnosis = looked_at(planted).diagnosis
    assert diagnosis is not None
    (cause,) = diagnosis.causes
    assert cause.factors == {"host": "n05"} and not cause.is_inseparable


def test_what_an_attempt_ran_in_is_a_factor(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    recorded_fleet(
        home,
        num_runs=200,
        fails=lambda run, _: 0.7 if run % 4 == 0 else 0.02,
        driver_of=lambda run: "560.1" if run % 4 == 0 else "550.54",
    )
    cause = one(looked_at(home).overview.results, "failures").cause
    assert cause is not None and cause.factors == {"driver": "560.1"}


def test_the_page_says_the_same_and_needs_nothing_beside_it(planted: Home) -> None:
    fleet = looked_at(planted)
    document = fleet_document(fleet)
    assert document.verdict is not None and document.verdict.sentence.startswith("Steps take")  # time spent is no fault
    page = render_document(document)
    for finding in fleet.overview.results:
        text = finding_text(finding, attempts=fleet.overview.attempts)
        assert text.split(":")[0].replace("'", "&#39;") in page
    for title in ("Failures over time", "Common factors of failed attempts", "What steps take"):
        assert title in page
    assert "src=" not in page and not re.search(r"href=.https?:|url\(", page)
    assert page.count("<svg") >= 6, "each figure for a desk and for a telephone"


@pytest.mark.slow
def test_what_a_factor_is_called_stays_text(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    version = "<script>alert(1)</script>"
    recorded_fleet(
        home,
        num_runs=200,
        fails=lambda run, _: 0.8 if run % 5 == 0 else 0.02,
        version_of=lambda run: version if run % 5 == 0 else "0.1",
    )
    fleet = looked_at(home)
    cause = one(fleet.overview.results, "failures").cause
    assert cause is not None and version in cause.factors.values()
    assert "<script>alert" not in render_document(fleet_document(fleet))


def test_the_command_prints_json_and_a_page_and_says_where_nothing_is(
    planted: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def assay(*arguments: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main([*arguments])
        return int(ended.value.code or 0)

    monkeypatch.setenv("ASSAY_HOME", str(planted.folder))
    assert assay("triage", "--json", "--out", str(tmp_path / "page.html")) == 0
    found = json.loads(capsys.readouterr().out)
    assert {item["about"] for item in found["results"]} == {"spent", "slower", "failures"}
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert assay("triage") == 0
    out = capsys.readouterr().out
    assert "cost a week" in out and f"{found['results'][0]['device_hours_a_week']:,.4g} device-hours" in out
    assert assay("triage", "--json", "failures") == 2
    assert "no run 'failures'" in capsys.readouterr().err
    assert assay("triage", "--junit", str(tmp_path)) == 2
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "nothing"))
    assert assay("triage") == 2
    assert "there are no runs in" in capsys.readouterr().err
    assert not (tmp_path / "nothing").exists()


LOOK = """
import os, sys
from assay.cli.main import main
try:
    main(["triage", "--json"])
except SystemExit as ended:
    assert not ended.code
found = {"pandas", "scipy.stats", "scipy.optimize", "pyarrow.parquet", "sklearn", "torch"} & set(sys.modules)
print(*sorted(found), file=sys.stderr)
"""


def test_it_imports_nothing_that_takes_longer_than_its_answer(planted: Home) -> None:
    environment = {**os.environ, "ASSAY_HOME": str(planted.folder)}
    done = subprocess.run([sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, ""), done.stderr
    assert '"host":"n05"' in done.stdout


def test_a_ledger_without_runs_is_said(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    home.open_ledger().close()
    with pytest.raises(ConfigError, match="the ledger has no run"):
        looked_at(home)


@pytest.mark.parametrize(("span_s", "unit"), [(30.0, "seconds"), (1_200.0, "minutes"), (9e3, "hours"), (9e5, "days")])
def test_failures_over_time_are_drawn_in_the_unit_of_their_span(span_s: float, unit: str) -> None:
    at_s = 1_700_000_000.0 + np.linspace(0.0, span_s, 60)
    figure = rates_figure(at_s, np.arange(60) % 2.0, np.ones(60))
    assert f"{unit} since the first attempt" in figure.chart.svg(1000)
    (first, *_), *_ = figure.table.rows
    assert figure.table.header[0] == unit and 0.0 < float(first) < 100.0
