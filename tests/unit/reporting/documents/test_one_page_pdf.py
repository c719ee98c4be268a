"""A document as a PDF: one sheet, with all its text, which is never read as markup."""

import io

import pytest
from pypdf import PdfReader

from assay.reporting.document import (
    Cell,
    Code,
    Commands,
    Document,
    Fact,
    FactList,
    Fold,
    Listing,
    Paragraph,
    Section,
    Table,
    TitledTable,
    Verdict,
    figure,
    number,
)
from assay.reporting.documents.one_page_pdf import one_page_pdf

MARKUP = '#panic("x") *bold* $x$ [y] @ref <label> // comment "quoted" \\ back'


LOW = Verdict("open", "low power", "It may be missed.")


def document(*blocks, verdict: Verdict | None = LOW) -> Document:
    return Document(
        name="summary",
        title="Scale it?",
        kind="plan on one page",
        verdict=verdict,
        tiles=[Fact("cost", "30,468 EUR", "median")],
        sections=[Section("Dates", blocks)],
        footer="Made by a test.",
    )


def pages_of(pdf: bytes) -> list[str]:
    return [" ".join(page.extract_text().split()) for page in PdfReader(io.BytesIO(pdf)).pages]


def test_every_kind_of_block_is_on_the_page_and_figures_are_not():
    blocks = [
        Paragraph("A paragraph."),
        FactList([Fact("name", Cell("value", "good"), "remark")]),
        Listing(["first item"], title="A list"),
        TitledTable("A table", "its caption", Table(("who", number("week 1")), [("Engineers", "3.5")])),
        Commands([("look again", "assay plan status")]),
        Code("kept as it is", title="Text"),
        Fold("folded", [Paragraph("inside")]),
        figure(lambda width: "<svg/>", title="A drawing", caption="of no use here"),
    ]
    (page,) = pages_of(one_page_pdf(document(*blocks)))
    for text in ("Scale it?", "low power", "30,468 EUR", "A paragraph.", "value", "remark", "first item", "its caption",
                 "3.5", "assay plan status", "kept as it is", "folded", "inside", "Made by a test."):  # fmt: skip
        assert text in page, text
    assert "drawing" not in page


def test_text_is_never_markup():
    (page,) = pages_of(one_page_pdf(document(Paragraph(MARKUP))))
    assert MARKUP in page


def test_a_document_without_a_verdict_has_no_box():
    (page,) = pages_of(one_page_pdf(document(Paragraph("Only this."), verdict=None)))
    assert "Only this." in page


def test_the_same_document_gives_the_same_bytes():
    assert one_page_pdf(document(Paragraph("x"))) == one_page_pdf(document(Paragraph("x")))


@pytest.mark.parametrize("num_items", [1, 60])
def test_text_shrinks_until_one_sheet_holds_it(num_items):
    (page,) = pages_of(one_page_pdf(document(Listing([f"item {index}." for index in range(num_items)]))))
    assert f"item {num_items - 1}." in page


def test_what_fits_at_no_size_goes_on_and_loses_nothing():
    pages = pages_of(one_page_pdf(document(Listing([f"item {index}." for index in range(150)]))))
    assert len(pages) > 1 and all(f"item {index}." in " ".join(pages) for index in range(150))
