"""The pages over everything: who is on them, and what they say of each."""

import pytest

from assay.records.campaign import Campaign
from assay.reporting.document import Drawing, Figure, TitledTable
from assay.reporting.documents.campaign_list import campaigns_document
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


def test_each_candidate_stands_with_its_campaign_and_newest_decision(memo_page):
    lines = [
        line
        for name in ("first", "second")
        for line in lines_of(
            declared(name), [item.model_copy(update={"campaign": name}) for item in memo_page.decisions]
        )
    ]
    address = "/decisions/{0.campaign}".format
    document = campaigns_document(lines, shown=range(len(lines)), address=address, now_s=0.0)
    assert document.tiles[0].value == "2"
    assert document.tiles[-1].value == device_hours_text(2 * memo_page.spent_s()), "the baseline's runs once"
    ((block, gains),) = [section.blocks for section in document.sections]
    assert isinstance(block, TitledTable) and isinstance(gains, Figure)
    assert isinstance(gains.chart, Drawing)
    drawn = gains.chart.svg(900)
    assert all(f"second: {decision.candidate}" in drawn for decision in memo_page.decisions)
    rows = {(row[0].text, row[1]): row for row in block.table.rows}
    for decision in memo_page.decisions:
        row = rows["first", decision.candidate]
        assert row[0].link == "/decisions/first"
        assert row[2].text.partition(",")[0] == decision.recommendation
