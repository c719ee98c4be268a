"""The document of a check of a training API."""

from collections.abc import Iterator

from assay.records.api_check import ApiCheck, ApiFault
from assay.reporting.document import (
    Block,
    Cell,
    Column,
    Document,
    Listing,
    Section,
    Table,
    Text,
    TitledTable,
    Tone,
    Verdict,
    name,
)

TONES: dict[str, Tone] = {"held": "good", "not tried": "open"}
"""Outcome -> its tone; all others are bad."""


def check_document(found: ApiCheck) -> Document:
    """Return a table with a row for each request and a column for each fault, and what the client saw."""
    tried = [fault for fault in found.faults if fault.outcome != "not tried"]
    failed = [fault for fault in tried if fault.outcome != "held"]
    verdict = (
        Verdict("bad", "fails", f"{len(failed)} of {len(tried)} faults were not held.")
        if failed
        else Verdict("good", "holds", f"All {len(tried)} faults were held: the client saw what it sees undisturbed.")
    )
    sections = [Section("Requests", [*_tables(tried)])]
    if failed:
        lines = [
            f"{item.loop} {item.request}, {item.fault or 'undisturbed'}: {item.outcome}. {item.seen}" for item in failed
        ]
        sections.append(Section("What the client saw", [Listing(lines)]))
    if found.not_tried:
        sections.append(Section("Not tried", [Listing(found.not_tried)]))
    return Document(title=found.url, kind="check of a training API", verdict=verdict, sections=sections)


def _tables(faults: list[ApiFault]) -> Iterator[Block]:
    for loop in dict.fromkeys(fault.loop for fault in faults):
        cells = {(fault.request, fault.fault): fault.outcome for fault in faults if fault.loop == loop}
        kinds = [*dict.fromkeys(kind for _, kind in cells)]
        rows: list[list[Text]] = [
            [request, *(_cell(cells.get((request, kind), "")) for kind in kinds)]
            for request in dict.fromkeys(request for request, _ in cells)
        ]
        yield TitledTable(f"Loop {loop}", "", Table([name("request"), *(Column(kind) for kind in kinds)], rows))


def _cell(outcome: str) -> Cell:
    return Cell(outcome, TONES.get(outcome, "bad") if outcome else None)
