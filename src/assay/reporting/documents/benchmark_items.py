"""Documents of a benchmark result's items, and of one item."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from assay.base.units import number_of
from assay.records.benchmark import BenchmarkResult
from assay.reporting.document import (
    Cell,
    Code,
    Column,
    Document,
    Fact,
    FactList,
    Listing,
    Paragraph,
    Section,
    Table,
    TitledTable,
    name,
    number,
)
from assay.reporting.documents.benchmarks import contamination_text, interval_text, notes
from assay.reporting.values import minute_text, one_line, shortened
from assay.reporting.views.benchmark_items import ItemView

SHOWN_CHARACTERS, MAX_CHARACTERS = 160, 40_000
"""Characters of a text that are shown in a table, and on the page of an item."""
"""Characters of a completion in a table."""


def result_document(
    result: BenchmarkResult,
    items: Sequence[ItemView],
    *,
    num_items: int,
    address: Callable[[ItemView], str] = lambda item: "",
    evaluate: str = "",
    links: Sequence[tuple[str, str]] = (),
) -> Document:
    """Return a result with some of its items. `num_items`: of the selection that `items` is a part of. `evaluate`: the
    command that adds scores of this checkpoint."""
    tiles = [
        Fact("score", f"{result.score.value:.4f}", interval_text(result.score)),
        Fact("items", f"{result.num_items:,}", f"{result.num_failed:,} failed"),
        Fact("trained on", contamination_text(result.contamination), ""),
        Fact("evaluated (UTC)", minute_text(result.evaluated_s), f"by {result.source}"),
    ]
    table = Table.of(
        items,
        (name("item"), lambda item: Cell(item.item_id, link=address(item))),
        (number("score"), lambda item: Cell("failed", "bad") if item.score is None else f"{item.score:.4g}"),
        (name("cluster"), lambda item: "" if item.cluster == item.item_id else item.cluster),
        (Column("completion", "line"), _preview),
    ).without_empty_columns()
    found, shown = notes(result), TitledTable("", number_of(num_items, "item"), table)
    sections = [
        Section("", [Listing(found)] if found else []),
        Section("Items", [shown if items else Paragraph("No items of this kind.")]),
    ]
    if evaluate:
        sections.append(Section("More scores of this checkpoint", [Code(evaluate)]))
    return Document(
        title=f"{result.benchmark}: {result.run_id}@{result.step:,}",
        kind="benchmark result",
        subtitle=f"weights {result.weights_digest[:12]}, {result.candidate}, seed {result.seed}",
        tiles=tiles,
        sections=sections,
        footer=f"{_footer(result)}; {shlex.join(['assay', 'eval', 'history', result.run_id])} --json",
        links=links,
    )


def _footer(result: BenchmarkResult) -> str:
    command = ["assay", "eval", "items", result.run_id, "--benchmark", result.benchmark, "--step", str(result.step)]
    return f"The same as JSON: {shlex.join(command)} --json"


def _preview(item: ItemView) -> str:
    return one_line(shortened(item.completion or item.failure or "", SHOWN_CHARACTERS))


def item_document(
    result: BenchmarkResult, item: ItemView, fields: Mapping[str, Any] | None, *, links: Sequence[tuple[str, str]] = ()
) -> Document:
    """Return the prompt, completion and grade of an item. `fields`: the item as its suite has it."""
    facts = [
        Fact("score", "none" if item.score is None else f"{item.score:.6g}"),
        Fact("weight", f"{item.weight:g}"),
        Fact("ended", item.finish_reason or "—"),
        *(
            Fact(key, f"{value:.6g}" if isinstance(value, float) else shortened(str(value), MAX_CHARACTERS))
            for key, value in item.details.items()
        ),
    ]
    if item.failure_kind:
        facts.append(Fact("failed", Cell(item.failure_kind, "bad"), shortened(item.failure or "", MAX_CHARACTERS)))
    texts = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
        for key, value in (fields or {}).items()
    }
    prompt: list[Code | Paragraph] = [Code(shortened(text, MAX_CHARACTERS), key) for key, text in texts.items()]
    absent = "The suite with this version of the benchmark is not on this machine, so its prompt cannot be shown."
    completion = shortened(item.completion or "", MAX_CHARACTERS)
    shown_text = Code(completion) if item.completion is not None else Paragraph("Nothing was sampled.")
    return Document(
        title=f"Item {item.item_id}",
        kind="benchmark item",
        subtitle=f"{result.benchmark}, {result.run_id}@{result.step:,}",
        sections=[
            Section("Prompt and expected answer", prompt or [Paragraph(absent)]),
            Section("Completion", [shown_text]),
            Section("Grade", [FactList(facts)]),
        ],
        footer=_footer(result),
        links=links,
    )
