"""The memo: what a reader takes away in two minutes is right, and hostile names stay text."""

import pytest

from assay.reporting.pages.memo_markdown import memo_markdown
from assay.reporting.pages.memo_page import render_memo_page
from assay.reporting.views.memo import memo_tiles, memo_verdict


def test_what_is_to_be_scaled_is_told_first_and_sets_the_tone(memo, decision):
    found = memo_verdict(memo(decision("no", "stop"), decision("perhaps", "narrow"), decision("yes", "scale")))
    assert (found.tone, found.word) == ("good", "scale yes · narrow perhaps · stop no")
    assert memo_verdict(memo(decision("no", "stop"))).tone == "bad"


def test_a_campaign_that_ended_early_says_what_is_not_decided_and_why(memo, decision):
    found = memo_verdict(memo(decision("no", "stop"), undecided=("late",), stopped_by="the budget is used up"))
    assert "late is not decided: the budget is used up." in found.sentence
    assert memo_verdict(memo(stopped_by="the budget is used up")).word == "not decided"


def test_baseline_runs_that_candidates_share_are_paid_for_once(memo, decision):
    both = memo(decision("no", "stop"), decision("yes", "scale"))
    assert both.spent_s() == 6 * 60.0
    assert memo_tiles(both)[-1].value == "6 min 00 s"


def test_an_open_clause_names_its_price(memo, decision):
    text = memo_markdown(memo(decision("perhaps", "narrow")))
    assert "2 more seeds (1 min 30 s of device time, 60% likely to pass)" in text


@pytest.mark.parametrize("recommendation", ["scale", "narrow", "stop"])
def test_hostile_names_stay_text(memo, decision, recommendation):
    page = render_memo_page(memo(decision("a", recommendation, because="<script>alert('y')</script>")))
    assert "<script" not in page
    text = memo_markdown(memo(decision("a", recommendation)))
    rows = [line for line in text.splitlines() if line.startswith("| ✓")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {7}


def test_a_memo_without_any_decision_is_a_page_too(memo):
    assert "not decided" in render_memo_page(memo(undecided=("a",)))
