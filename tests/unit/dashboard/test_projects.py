"""What one project does changes no byte of what another one reads."""

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from assay.dashboard import dashboard
from assay.dashboard.access import Reader, visible_runs
from assay.dashboard.app import PAGES
from assay.records.audit import AuditReport
from assay.records.commit import RunFinished
from assay.records.evaluation import AucComparison, Estimate
from assay.records.failure import Failure
from assay.records.incident import Incident
from assay.records.launch import Launch
from assay.records.run import Attempt, Note, PhaseSeconds, RunNotes
from assay.serving.ids import new_id
from assay.serving.openai.app_state import AppState
from assay.store.home import Home
from assay.store.ledger.database import Connection
from assay.store.ledger.visible_runs import VisibleRuns
from clocks import ManualClock
from machine import MACHINE
from metric_runs import log_points, metric_run
from unit.dashboard.accepted import accept_batch, accept_eval_run, accept_job, accept_session, charge, launch, validate
from unit.dashboard.conftest import Site, site_of
from unit.dashboard.test_benchmarks import put, scored
from unit.dashboard.test_jobs import logged_in

NOW_S = 1_800_000_000.0
WHALES = "blue-whales"
QUERIES = {
    "/runs": ("status=failed", "group=recipe", "search={}", "sort=value"),
    "/compare": ("run={}", "run=everybodys&metric=loss", "status=failed"),
    "/benchmarks": ("run={}",),
    "/cost": ("by=person", "by=day", "by=program"),
    "/cost.csv": ("by=day",),
    "/jobs": ("status=running",),
    "/runs/{run_id}/curve": ("name=loss",),
    "/runs/{run_id}/curve.csv": ("name=loss",),
    "/runs/{run_id}/metrics": ("show=loss",),
}
KEY_PAGES = ("/", "/runs", "/jobs", "/cost.csv?by=day", "/runs/everybodys", "/benchmarks", "/benchmarks/sums")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A home with the work of everybody and of one project, at a clock that stands still."""
    found = site_of(Home.at(tmp_path / "runs"), ManualClock(NOW_S))
    work_on(found, "everybodys")
    work_on(found, job_of(found, "strangers"))
    return found


def job_of(site: Site, project: str) -> str:
    """Accept and launch a job."""
    api = site.dashboard.api
    job_id = accept_job(api, project, at_s=NOW_S - 900, metadata={"of": project}, suffix=project)
    validate(api, job_id, at_s=NOW_S - 890)
    launch(api, job_id, at_s=NOW_S - 880)
    return job_id


def work_on(site: Site, run_id: str) -> None:
    """Record whatever the ledger and a run's folder may hold of a run."""
    home = site.dashboard.home
    log_points(metric_run(home, run_id, 0), 1, 0, loss=[3.0, 2.0, 1.0])
    times = {"started_s": NOW_S - 800, "ended_s": NOW_S - 400, "start_step": 0, "end_step": 9}
    failure = Failure(failure_kind="exception", run_id=run_id, attempt=1, signature=run_id, text=run_id, host=run_id)
    attempt = Attempt.model_validate(
        {"run_id": run_id, "attempt": 1, "world_size": 2, "outcome": "failed", "reason": run_id, **times, **MACHINE}
    )
    with home.open_ledger() as ledger:
        ledger.record_attempt(attempt.model_copy(update={"failure": failure}))
        for number in range(2):
            held = PhaseSeconds(run_id=run_id, attempt=number, rank=0, held_s=400.0, seconds={"compute": 400.0})
            ledger.record_phase_seconds(held)
        ledger.record_log_entries(run_id, {0: RunFinished(attempt=1, step=9, weights_digest="w")})
        incident = Incident(incident="hang", run_id=run_id, attempt=1, at_s=NOW_S - 500, text=run_id)
        ledger.record_incidents(run_id, {0: incident})
        ledger.record_launch(
            Launch(
                run_id=run_id,
                number=1,
                launcher="here",
                job="1",
                host="h",
                world_size=2,
                log="",
                started_by="me",
                started_s=NOW_S - 801,
            )
        )
        for pair in ((run_id, "everybodys"), ("everybodys", run_id)):
            ledger.record_comparison(
                AucComparison(
                    baseline_run_id=pair[0], candidate_run_id=pair[1], num_rows=9, baseline_auc=0.9, candidate_auc=0.8,
                    difference=Estimate(value=-0.1), allowed_loss=0.01, verdict="fail", weights_equal=False,
                )
            )  # fmt: skip
        ledger.record_audit(
            AuditReport(run_id=run_id, verdict="fail", step=9, epochs=1, rows_expected=9, rows_trained=8,
                        rows_quarantined=0, missing=(run_id,))
        )  # fmt: skip
        ledger.record_run_notes(RunNotes(run_id=run_id, tags=(run_id,), notes=(Note(at_s=1.0, by="me", text=run_id),)))
    put(home, [scored(run_id, step, "sums", step / 100) for step in (1, 9)])


def work_of_whales(site: Site) -> list[str]:
    """Let another project accept, train, evaluate and pay; return the ids of what it made."""
    api = site.dashboard.api
    job_id = job_of(site, WHALES)
    work_on(site, job_id)
    charge(api, job_id, attempt=1, began_s=NOW_S - 800, ended_s=NOW_S - 400, device_s=800.0)
    session_id = accept_session(api, WHALES, at_s=NOW_S - 950)
    work_on(site, session_id)
    resources = [
        job_id,
        session_id,
        accept_batch(api, WHALES, at_s=NOW_S - 9),
        accept_eval_run(api, WHALES, at_s=NOW_S - 8),
    ]
    with site.dashboard.home.open_ledger() as ledger:
        for run_id in resources[2:]:
            held = PhaseSeconds(run_id=run_id, attempt=0, rank=0, held_s=70.0, seconds={"evaluation": 70.0})
            ledger.record_phase_seconds(held)
    site.dashboard.watch.forget()
    return resources


def addresses_of(resource_id: str) -> Iterator[str]:
    """Yield every address of a page with an id in its parts and in its query."""
    for address in PAGES:
        filled = re.sub(r"\{(run_id|job_id)\}", resource_id, address).replace("{step}", "9")
        path = re.sub(r"\{\w+\}", "sums", filled)
        yield from (f"{path}?{query.format(resource_id)}" for query in ("", *QUERIES.get(address, ())))


def seen(browser: TestClient, address: str) -> tuple[object, ...]:
    """Return all that a reader can see of an answer."""
    response = browser.get(address)
    headers = {name: value for name, value in response.headers.items() if name != "date"}
    return response.status_code, headers, response.content


def wait_for_background(browser: TestClient) -> None:
    """Wait until what pages show of the background is computed."""
    for _ in range(500):
        if not any("eing computed" in browser.get(address).text for address in ("/", "/coverage")):
            return
        time.sleep(0.01)
    raise AssertionError("something is computed for ever")


def changes(site: Site, own: Sequence[str]) -> Iterator[str]:
    """Yield the addresses at which a stranger learns what another project does; `own`: pages of all and of its own."""
    stranger = logged_in(site, "strangers")
    for _ in range(2):  # the first time, points of runs are folded into the ledger
        wait_for_background(stranger)
        before = {address: seen(stranger, address) for address in own}
        site.dashboard.watch.forget()
    resources = work_of_whales(site)
    yield from (address for address in own if seen(stranger, address) != before[address])
    for resource_id in resources:
        ghost = new_id(resource_id.partition("-")[0], NOW_S)
        for address in addresses_of(resource_id):
            if resource_id in address:
                unknown = seen(stranger, address.replace(resource_id, ghost))
                if seen(stranger, address) != tuple(_renamed(part, ghost, resource_id) for part in unknown):
                    yield address


def _renamed(part: object, old: str, new: str) -> object:
    return part.replace(old.encode(), new.encode()) if isinstance(part, bytes) else part


def test_a_project_learns_nothing_of_another_one(site: Site) -> None:
    (own_job,) = site.dashboard.api.jobs.newest("strangers")
    assert [*changes(site, [*addresses_of(own_job), "/runs/everybodys", "/runs/everybodys/metrics"])] == []
    owner = logged_in(site, WHALES)
    text = "".join(owner.get(address).text for address in ("/", "/runs", "/jobs", "/cost"))
    (job_id,) = site.dashboard.api.jobs.newest(WHALES)
    assert text.count(job_id) >= 4, "its own readers see it"


def shows_all(_: VisibleRuns, run_id: str) -> bool:
    return bool(run_id)


def without_batches(reader: Reader, api: AppState) -> VisibleRuns | None:
    """The rule without one kind of ids."""
    shown = rule(reader, api)
    return None if shown is None else shown._replace(forms=[form for form in shown.forms if form[0] != "batch-"])


def owns_all(reader: Reader, api: AppState) -> VisibleRuns | None:
    """The rule with the jobs of another project."""
    shown = rule(reader, api)
    return None if shown is None else shown._replace(own=[*shown.own, *api.jobs.newest(WHALES)])


rule = visible_runs


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken",
    [
        (VisibleRuns, "shows", shows_all),
        (VisibleRuns, "hide_others", lambda *_, **__: None),
        (dashboard, "visible_runs", without_batches),
        (dashboard, "visible_runs", owns_all),
        (dashboard, "visible_runs", lambda *_: None),
        (Reader, "topic", lambda _, topic: topic),
    ],
    ids=["shows", "hide_others", "a kind of ids", "own", "all", "topic"],
)
def test_the_walk_notices_a_broken_rule(
    site: Site, broken: tuple[object, str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*broken)
    assert any(changes(site, KEY_PAGES))


@pytest.mark.parametrize("table", ["runs", "attempts", "phase_seconds", "benchmark_results", "run_notes"])
def test_the_walk_notices_a_table_that_hides_nothing(site: Site, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hide = VisibleRuns.hide_others

    def broken(self: VisibleRuns, session: Connection, *, schema: str) -> None:
        hide(self, session, schema=schema)
        session.execute(f"DROP VIEW {table}")

    monkeypatch.setattr(VisibleRuns, "hide_others", broken)
    assert any(changes(site, KEY_PAGES))


def test_a_reader_follows_the_topics_of_shown_pages_only(site: Site) -> None:
    (job_id, *_) = work_of_whales(site)
    stranger, owner = logged_in(site, "strangers"), logged_in(site, WHALES)
    for address in (f"/runs/{job_id}", f"/jobs/{job_id}", "/jobs", "/runs", "/"):
        found = re.search(r'data-address="([^"]+)"', owner.get(address).text)
        assert found is not None, address
        stream = found[1].replace("&amp;", "&")
        assert owner.head(stream).status_code == 200
        assert stranger.head(stream).status_code == 400
        assert owner.head(stream.replace("topic=", "topic=x")).status_code == 400
        assert owner.head(stream.partition("&signature")[0]).status_code == 400
