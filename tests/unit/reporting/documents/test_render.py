"""Pages: the first sentence is right, everything is inside the file, and hostile names stay text."""

import re
import resource
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from assay.base.errors import StoreError
from assay.base.units import percent_text
from assay.records.evaluation import Estimate
from assay.reporting.documents.comparison import comparison_document, comparison_verdict
from assay.reporting.documents.render import render_document, write_file
from assay.reporting.documents.runs.run import run_document
from assay.reporting.documents.runs.run_verdict import run_verdict
from assay.reporting.values import estimate_text

VOID = {"meta", "link", "br", "img", "hr", "input"}


def test_a_page_that_cannot_be_written_whole_leaves_the_one_that_is_there(tmp_path):
    page = tmp_path / "page.html"
    write_file(page, "good")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2, hard))
    try:
        with pytest.raises(StoreError, match="cannot be written"):
            write_file(page, "another")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert page.read_text() == "good" and [*tmp_path.iterdir()] == [page]
    (tmp_path / "link.html").symlink_to(page)
    write_file(tmp_path / "link.html", "through the link")
    assert page.read_text() == "through the link"


class Outline(HTMLParser):
    """Which elements there are, and whether each is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.seen)


@pytest.fixture(params=["run", "comparison", "empty"])
def page(request, run_page, comparison_page, empty_page) -> str:
    if request.param == "comparison":
        return render_document(comparison_document(comparison_page))
    return render_document(run_document(run_page if request.param == "run" else empty_page, now_s=0.0))


def test_a_page_is_whole_and_needs_nothing_from_outside(page):
    outline = Outline(page)
    assert outline.open == []
    assert not [tag for tag, _ in outline.seen if tag in ("script", "iframe", "img", "object")]
    links = [value for _, attributes in outline.seen for key, value in attributes.items() if key in ("src", "href")]
    assert [link for link in links if not (link or "").startswith("#")] == ["data:,"]
    assert not re.search(r"@import|url\(", page)


def test_each_figure_has_a_caption_a_spoken_label_and_its_numbers(page):
    outline = Outline(page)
    figures = outline.count("figure")
    drawings = [attributes for tag, attributes in outline.seen if tag == "svg"]
    assert outline.count("figcaption") == figures
    assert outline.count("details") >= figures
    assert all(drawing["role"] == "img" and drawing["aria-label"] for drawing in drawings)


def test_equal_facts_make_equal_pages(run_page):
    assert render_document(run_document(run_page, now_s=0.0)) == render_document(run_document(run_page, now_s=0.0))


def test_the_page_of_a_killed_run_opens_with_what_matters(run_page):
    verdict = run_verdict(run_page.view)
    assert verdict.tone == "good"
    assert "rows was learned exactly once" in verdict.sentence
    assert "interrupted once (rank 1 was killed by SIGKILL)" in verdict.sentence
    assert "28 steps were made again" in verdict.sentence
    assert verdict.sentence in render_document(run_document(run_page, now_s=0.0))


def test_a_fork_claims_its_own_rows_only_and_two_epochs_are_not_halved(run_page):
    def sentence(**changes: object) -> str:
        audit = run_page.view.audit.model_copy(update={"rows_trained": 4_008, **changes})
        return run_verdict(run_page.view.model_copy(update={"audit": audit})).sentence

    assert sentence(epochs=1).startswith("Each of 4,008 rows was learned exactly once.")
    assert "In 2 epochs, 4,008 rows were due up to the last step, and each" in sentence(epochs=2)
    fork = sentence(epochs=2, forked_from="t1@40")
    assert "4,008 rows was learned exactly once behind t1@40, whose own audit covers the earlier rows" in fork
    assert "2,004" not in sentence(epochs=2) + fork


def test_a_run_whose_end_nobody_wrote_down_is_not_called_undisturbed(run_page):
    view, first = run_page.view, run_page.view.attempts[0].model_copy(update={"outcome": "running"})
    for status, outcome, text in (
        ("gone", "running", "The end of its last attempt is not recorded yet."),
        ("preempted", "preempted", ">stopped<"),
        ("preempted", "preempted", "It was asked to stop and committed first"),
        ("succeeded", "succeeded", "Nothing interrupted it."),
    ):
        attempts = [first.model_copy(update={"outcome": outcome})]
        changed = view.model_copy(update={"status": status, "attempts": attempts})
        assert text in render_document(run_document(replace(run_page, view=changed), now_s=0.0))


def test_a_failed_audit_comes_before_any_good_news(run_page):
    audit = run_page.view.audit.model_copy(update={"verdict": "fail", "missing": ("epoch 0 row 7",)})
    verdict = run_verdict(run_page.view.model_copy(update={"audit": audit}))
    assert (verdict.tone, verdict.word) == ("bad", "audit failed")
    assert "epoch 0 row 7" in verdict.sentence


@pytest.mark.parametrize(
    ("changes", "tone", "word"),
    [
        ({"audit": None}, "open", "finished"),
        ({"status": "running"}, "open", "running"),
        ({"status": "preempted"}, "open", "stopped"),
        ({"status": "failed"}, "bad", "failed"),
    ],
)
def test_nothing_short_of_a_finished_and_audited_run_is_called_good(run_page, changes, tone, word):
    verdict = run_verdict(run_page.view.model_copy(update=changes))
    assert (verdict.tone, verdict.word) == (tone, word)


def test_a_supervisor_that_died_is_explained_with_what_to_do(run_page):
    verdict = run_verdict(run_page.view.model_copy(update={"status": "gone"}))
    assert verdict.word == "supervisor gone" and "the process that starts the run's ranks" in verdict.sentence
    assert "Nothing trains" in verdict.sentence and "Resume the run" in verdict.sentence


def test_the_verdict_of_a_comparison_is_that_of_its_worst_candidate(compared):
    good, bad = compared(0.0), compared(3.0)
    page = replace(good, candidates=[*good.candidates, *bad.candidates])
    assert comparison_verdict(good).tone == "good"
    assert "bit for bit" in comparison_verdict(good).sentence
    assert comparison_verdict(page).tone == "bad"


def test_hostile_names_stay_text(run_page):
    evil = "<script>alert(1)</script>\"'&"
    run = run_page.view
    slices = tuple(slice_part.model_copy(update={"value": evil}) for slice_part in run.evaluation.slices)
    changes = {
        "run_id": evil,
        "recipe": {"name": evil},
        "attempts": tuple(attempt.model_copy(update={"reason": evil}) for attempt in run.attempts),
        "evaluation": run.evaluation.model_copy(update={"slices": slices}),
    }
    page = render_document(run_document(replace(run_page, view=run.model_copy(update=changes)), now_s=0.0))
    assert "<script" not in page
    assert Outline(page).open == []


def test_numbers_are_written_honestly():
    assert percent_text(0.99999) == ">99.9%"
    assert percent_text(1.0) == "100%"
    assert estimate_text(None) == "—"
    assert estimate_text(Estimate(value=-0.001, low=-0.002, high=0.0), signed=True) == "-0.0010 [-0.0020, +0.0000]"
