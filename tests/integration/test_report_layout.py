"""What a reader sees of a report's tiles: words and durations on one line, apart from what follows."""

import pytest

from assay.reporting.document import Document, Fact, FactList, Section
from assay.reporting.documents.render import render_document
from browser import opened_browser

pytestmark = pytest.mark.slow

TILES = [Fact("rule", "undecided", "passes"), Fact("device time of training", "2 min 06 s"), Fact("evidence", "6 runs")]
DOCUMENT = Document(
    title="fresh",
    kind="run",
    tiles=[*TILES, Fact("sure of 2 points or more", "over 99%"), Fact("last commit", "step 1,432")],
    sections=[Section("", [FactList([Fact("step", "1 of 10")])])],
)
LINES = """() => [...document.querySelectorAll(".tile .value")].map(
  (value) => Math.round(value.clientHeight / parseFloat(getComputedStyle(value).lineHeight)))"""
GAP = """() => document.querySelector(".facts").getBoundingClientRect().top
  - document.querySelector(".tiles").getBoundingClientRect().bottom"""


def test_tiles_keep_words_whole_and_stand_apart_from_the_facts_below() -> None:
    with opened_browser() as browser:
        page = browser.new_page()
        page.set_content(render_document(DOCUMENT))
        for width in (390, 700, 960, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate(LINES) == [1] * 5, f"at {width} pixels"
            assert page.evaluate(GAP) >= 16, f"at {width} pixels"
