"""From a ledger to a page."""

from dataclasses import replace

import pytest

from assay.base.errors import ConfigError
from assay.records.commit import CommitQuarantined, RunFinished
from assay.reporting.pages.render import render_run_page
from assay.reporting.views.gather import run_page as gathered
from assay.reporting.views.verdict import run_verdict
from assay.store.ledger.ledger import Ledger, open_ledger


@pytest.fixture
def ledger(tmp_path, run_page):
    with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as opened:
        opened.record_run(run_page.run)
        yield opened


def record_life(ledger: Ledger, page) -> None:
    for attempt in page.attempts:
        ledger.record_attempt(attempt)
    ledger.record_log_entries(page.run.run_id, dict(enumerate(page.commits)))
    for phases in page.phases:
        ledger.record_phase_seconds(phases)
    ledger.record_audit(page.audit)


def test_what_the_ledger_knows_is_on_the_page(ledger, run_page):
    record_life(ledger, run_page)
    page = gathered(ledger, run_page.run.run_id[:8])
    assert (page.attempts, page.commits, page.audit) == (run_page.attempts, run_page.commits, run_page.audit)
    assert page.device_seconds() == pytest.approx(run_page.device_seconds())


def test_a_run_is_finished_only_when_its_log_says_so(ledger, run_page):
    record_life(ledger, replace(run_page, attempts=run_page.attempts[:1]))
    assert gathered(ledger, run_page.run.run_id).status == "failed"
    finished = RunFinished(attempt=2, step=400, weights_digest="5f0c" * 16)
    ledger.record_log_entry(run_page.run.run_id, len(run_page.commits), finished)
    assert gathered(ledger, run_page.run.run_id).status == "succeeded"


def test_a_run_that_has_only_been_asked_for_has_a_page(ledger, run_page):
    page = gathered(ledger, run_page.run.run_id)
    assert run_verdict(page).tone == "open"
    assert "no commit yet" in render_run_page(page)


def test_an_unknown_run_is_refused_by_name(ledger):
    with pytest.raises(ConfigError, match="nothing-like-it"):
        gathered(ledger, "nothing-like-it")


def test_a_damaged_commit_is_not_the_last_one(ledger, run_page):
    record_life(ledger, run_page)
    damaged = run_page.commits[-1]
    entry = CommitQuarantined(
        attempt=2, folder=damaged.folder, step=damaged.step, reason="a file was cut short"
    )
    ledger.record_log_entry(run_page.run.run_id, len(run_page.commits), entry)
    page = gathered(ledger, run_page.run.run_id)
    assert page.last_commit() == run_page.commits[-2]
    assert "a file was cut short" in render_run_page(page)
