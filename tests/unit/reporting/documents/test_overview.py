"""The pages over everything: who is on them, and what they say of each."""

import pytest

from assay.records.campaign import Campaign
from assay.reporting.document import TitledTable, text_of
from assay.reporting.documents.overview import campaigns_document
from assay.reporting.documents.render import render_document
from assay.reporting.values import device_hours_text
from assay.reporting.views.evidence import lines_of


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
        assert [text_of(row[2]).partition(",")[0] for row in block.table.rows if row[1] == decision.candidate] == [
            decision.recommendation
        ]
