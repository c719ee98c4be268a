"""The pages over everything: who is on them, and what they say of each."""

from dataclasses import replace

import pytest

from assay.base.clock import SystemClock
from assay.records.campaign import Campaign
from assay.reporting.document import TitledTable
from assay.reporting.documents.overview import campaigns_document, live_document
from assay.reporting.documents.render import render_document
from assay.reporting.values import device_hours_text
from assay.reporting.views.evidence import lines_of
from assay.reporting.views.runs.run_page import RECENT_S, live_runs
from assay.store.home import Home


@pytest.fixture
def ledger(tmp_path):
    with Home.at(tmp_path).open_ledger() as opened:
        yield opened


def that_died(life, *, ended_s):
    """Its first attempt was killed then, and no other was begun."""
    first = life.attempts[0].model_copy(update={"started_s": ended_s - 34, "ended_s": ended_s})
    return life._replace(attempts=[first], entries=life.entries[:4], phases=[], evaluation=None, audit=None)


@pytest.mark.parametrize(("ago_s", "is_shown"), [(60.0, True), (RECENT_S + 60.0, False)])
def test_a_run_that_died_is_looked_at_for_a_day(ledger, life, ago_s, is_shown):
    now_s = SystemClock().now_s()
    that_died(life, ended_s=now_s - ago_s).record(ledger)
    document = live_document(live_runs(ledger, now_s=now_s), now_s=now_s)
    assert [section.name for section in document.sections] == [life.run.run_id] * is_shown
    assert document.verdict.tone == ("bad" if is_shown else "open")
    assert ("rank 1 was killed by SIGKILL" in document.verdict.sentence) == is_shown


def test_a_finished_run_is_none_of_the_live_ones(ledger, life):
    life.record(ledger)
    assert live_runs(ledger, now_s=life.attempts[-1].ended_s + 1) == []


def test_a_run_of_which_nobody_can_tell_counts_as_none_that_runs(run_page):
    view = run_page.view.model_copy(update={"status": "unknown"})
    document = live_document([replace(run_page, view=view)], now_s=0.0)
    assert document.verdict.tone == "open" and "0 running" in document.verdict.word
    assert "1 not heard of for long" in document.verdict.word


def test_the_time_left_follows_from_the_steps_left_and_the_speed(run_page):
    view = run_page.view.model_copy(update={"status": "running", "total_steps": 1000})
    reached = max(attempt.reached_step for attempt in view.attempts)
    assert view.left_s() == pytest.approx((1000 - reached) / view.speed.steps_per_s)
    for update in ({"status": "failed"}, {"speed": None}):
        assert view.model_copy(update=update).left_s() is None


def declared(name):
    return Campaign(
        name=name,
        config={},
        config_sha256="",
        recipe={},
        base_dir="",
        known_good_sha256=None,
        created_s=0.0,
        suites={},
    )


def test_each_candidate_stands_under_its_campaign_with_its_newest_decision(memo_page):
    lines = [
        line
        for name in ("first", "second")
        for line in lines_of(
            declared(name), [item.model_copy(update={"campaign": name}) for item in memo_page.decisions]
        )
    ]
    document = campaigns_document(lines, memos=[("campaigns/first/memo.html", "memo of first")], now_s=0.0)
    assert [section.name for section in document.sections] == ["first", "second"]
    assert document.tiles[-1].value == device_hours_text(2 * memo_page.spent_s()), "the baseline's runs once"
    page = render_document(document)
    assert 'href="campaigns/first/memo.html"' in page
    for decision in memo_page.decisions:
        block = document.sections[0].blocks[-1]
        assert isinstance(block, TitledTable)
        assert [row[1] for row in block.table.rows if row[0] == decision.candidate] == [decision.recommendation]


def test_a_page_that_is_written_again_is_read_again(run_page):
    document = live_document([run_page], now_s=0.0)
    assert '<meta http-equiv="refresh" content="30.0">' in render_document(document, refresh_s=30.0)
    assert 'http-equiv="refresh"' not in render_document(document)
