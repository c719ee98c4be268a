"""Renders a `Document` as a PDF of one A4 sheet.

    Document --json--> templates/one_page.typ --typst--> PDF

A document for one page is an ordinary `Document`: verdict, tiles, and a few sections of paragraphs, lists and tables.
Figures are left out. To make one, build the `Document` and call

    write_pdf(folder / "summary.pdf", one_page_pdf(document))

The template chooses the largest text size, 10.5 pt to 7 pt, at which everything fits. If a document is too long for
the smallest size, it continues on a second sheet, and nothing is cut. The same document gives the same bytes.
"""

import datetime
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from assay.base.visible import written_out
from assay.reporting.document import (
    Block,
    Code,
    Commands,
    Document,
    FactList,
    Fold,
    Listing,
    Paragraph,
    Table,
    Text,
    TitledTable,
    Verdict,
    name,
    text_of,
)

_TIMESTAMP = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
"""Replaces the time of writing, which would differ from call to call."""


def one_page_pdf(document: Document) -> bytes:
    """Return the document as a PDF of one A4 sheet, without its figures."""
    import typst  # 80 MB that only this needs

    template = (files("assay.reporting") / "templates" / "one_page.typ").read_bytes()
    text = json.dumps(_values(document))
    pdf = typst.compile(template, format="pdf", sys_inputs={"document": text}, timestamp=_TIMESTAMP)
    assert isinstance(pdf, bytes), "a PDF is one file"
    return pdf


def _values(document: Document) -> dict[str, Any]:
    verdict = document.verdict or Verdict("ended", "", "")
    return {
        "title": _text(document.title),
        "kind": _text(document.kind),
        "subtitle": _text(document.subtitle),
        "verdict": {"tone": verdict.tone, "word": _text(verdict.word), "sentence": _text(verdict.sentence)},
        "tiles": [
            {"name": _text(tile.name), "value": _text(tile.value), "note": _text(tile.note)} for tile in document.tiles
        ],
        "sections": [{"name": _text(section.name), "blocks": _blocks(section.blocks)} for section in document.sections],
        "footer": _text(document.footer),
    }


def _blocks(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """Return the blocks' values, without figures."""
    values: list[dict[str, Any]] = []
    for block in blocks:
        match block:
            case Paragraph(text=text):
                values.append({"type": "paragraph", "text": _text(text)})
            case Listing(items=items, title=title):
                values.append({"type": "list", "title": _text(title), "items": list(map(_text, items))})
            case FactList(items=facts, title=title):
                rows = [(fact.name, fact.value, fact.note) for fact in facts]
                values.append(_table(title, "", Table((name(""), "", ""), rows)))
            case TitledTable(title=title, caption=caption, table=table):
                values.append(_table(title, caption, table))
            case Commands(items=commands):
                values.append(_table("", "", Table(("", ""), commands)))
            case Code(text=text, title=title):
                values.append({"type": "code", "title": _text(title), "text": text})
            case Fold(title=title, blocks=inner):
                values += [{"type": "paragraph", "text": _text(title)}, *_blocks(inner)]
    return values


def _table(title: str, caption: str, table: Table) -> dict[str, Any]:
    headings = [_text(column.heading) for column in table.columns]
    return {
        "type": "table",
        "title": _text(title),
        "caption": _text(caption),
        "header": headings if any(headings) else [],
        "rows": [list(map(_text, row)) for row in table.rows],
        "is_number": [column.kind == "number" for column in table.columns],
        "is_name": [column.kind == "name" for column in table.columns],
    }


def _text(text: Text) -> str:
    """Return a text with its control characters written out."""
    return written_out(text_of(text))
