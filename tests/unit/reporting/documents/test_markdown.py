"""What a reader of Markdown sees of a text is the text, and nothing of it is obeyed."""

import html
import re
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from assay.base.visible import written_out
from assay.reporting.document import Table
from assay.reporting.documents.markdown import code, fenced, markdown_table, plain

MARKS = st.text(st.sampled_from("a1 \n\t\\`*_[]()<>&|#!:;+-=~.$\"'/é"), max_size=12)
TEXTS = st.one_of(MARKS, st.text(max_size=20))


def rendered(*lines: str) -> str:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).render("\n".join(lines))


def seen(page: str, *tags: str) -> str:
    """The text of a page that has these tags and no others."""
    assert sorted(re.findall(r"<[^<>]*>", page)) == sorted(tags), page
    return " ".join(html.unescape(re.sub(r"<[^<>]*>", "", page)).split())


def as_line(text: str) -> str:
    return " ".join(written_out(text).split())


@given(TEXTS)
@example("<img src=x onerror=alert(1)>")
@example("[a](javascript:alert(1))")
@example("![a](http://x)")
@example("12) a")
@example("&lt;b&gt;\\<b>")
@example("a\n# head\n---\n| a | b |\n|---|---|")
def test_a_text_is_shown_as_it_is_wherever_it_stands(text: str) -> None:
    line = as_line(text)
    assert seen(rendered(f"x {plain(text)} x"), "<p>", "</p>") == as_line(f"x {text} x")
    for before, tags in (
        ("- ", ("<ul>", "<li>", "</li>", "</ul>")),
        ("## ", ("<h2>", "</h2>")),
        ("", ("<p>", "</p>") if line else ()),
    ):
        assert seen(rendered(f"{before}{plain(text)}"), *tags) == line


@given(st.lists(TEXTS, min_size=2, max_size=2))
@example(["a\\", "b"])
@example(["\\|", "|\\"])
def test_a_cell_is_shown_as_it_is(texts: Sequence[str]) -> None:
    for quoted in (plain, code):
        page = rendered(*markdown_table(Table(("a", "b"), [[quoted(text) for text in texts]])))
        cells = re.findall(r"<td>(.*?)</td>", page)
        shown = [html.unescape(re.sub(r"</?code>", "", cell)) for cell in cells]
        assert shown == [as_line(text) for text in texts], page


@given(TEXTS)
def test_a_name_is_shown_as_it_is(text: str) -> None:
    page = rendered(f"x {code(text)} x").replace("<code>", "").replace("</code>", "")
    assert seen(page, "<p>", "</p>") == as_line(f"x {text} x")


@given(st.text(st.sampled_from("a\n` "), max_size=20))
def test_no_text_ends_its_block_of_code(text: str) -> None:
    assert rendered(*fenced(text, "yaml"), "after").endswith("</code></pre>\n<p>after</p>\n")


@pytest.mark.parametrize("text", ["p < 0.05 & n > 3", "2 * 3", "learning_rate", "[0.1, 0.3]", "a-b", "-0.12", "C:\\x"])
def test_what_nothing_obeys_gets_no_backslash(text: str) -> None:
    assert plain(text) == text
