"""The document of `assay doctor shapes`."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from assay.base.units import bytes_text, count_text, percent_text
from assay.reporting.document import (
    Block,
    Cell,
    Column,
    Document,
    Fact,
    FactList,
    Listing,
    Section,
    TitledTable,
    name,
    number,
)
from assay.reporting.views.shapes import OperatorView, ShapeAdviceView, ShapesView, TimeBasis
from assay.throughput.shape_changes import Changed

SMALL_SHARE = 0.005
"""Operators with a smaller share of a pass are summed in one row."""
LOSSES = ("tiles", "waves", "alignment", "vocabulary")
BASIS: dict[TimeBasis, str] = {
    "estimate": "estimate: nothing was measured",
    "corrected": "corrected by passes that were timed on this machine",
}
CHANGES: dict[Changed, str] = {"rounding": "rounding only", "training": "what is learned", "model": "the model"}
NOT_RUN = "on a GPU, the order of these estimates was never compared with measured steps (docs/shapes.md)"


def shapes_document(found: ShapesView) -> Document:
    """Return the document."""
    return Document(
        title=f"Shapes of {found.recipe_name}",
        kind="shapes",
        subtitle=f"{found.device} x {found.workers} ({found.source})",
        sections=[
            Section("", [FactList(list(_facts(found)))]),
            Section("", [_operators(found), *_collectives(found), _memory(found)]),
            Section("", list(_advice(found))),
        ],
        footer="docs/shapes.md",
    )


def _facts(found: ShapesView) -> Iterator[Fact]:
    exchange_s = sum(part.seconds for part in found.collectives)
    parts = {"passes": found.passes * found.pass_s, "lane sums, optimizer": found.update_s, "exchange": exchange_s}
    text = ", ".join(f"{part} {_seconds(seconds)}" for part, seconds in parts.items() if seconds)
    yield Fact("step", _seconds(found.step_s), f"{text}; {BASIS[found.basis]}")
    of_pass = ", ".join(
        f"{part} {percent_text(seconds / found.pass_s)}" for part, seconds in found.pass_parts_s.items()
    )
    yield Fact("pass", _seconds(found.pass_s), f"{of_pass}; {found.passes:g} on the busiest worker")
    rows, tokens = (_span(numbers) for numbers in (found.rows, found.tokens))
    yield Fact("micro-batch", f"rows: {rows}", f"tokens, padding counted: {tokens}")
    if found.model_share:
        yield Fact("rate", percent_text(found.model_share), "FLOPs of a pass over the data sheet's bfloat16 rate")


def _span(numbers: tuple[int, ...]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _operators(found: ShapesView) -> TitledTable:
    shown = [operator for operator in found.operators if operator.seconds > SMALL_SHARE * found.pass_s]
    losses = [loss for loss in LOSSES if any(operator.lost[loss] >= SMALL_SHARE for operator in shown)]
    return TitledTable.of(
        "Operators of a pass",
        "Estimated. Sizes are rows x inputs x outputs, or sequences x tokens x heads x width.",
        shown,
        ("operator", _name),
        (name("sizes"), lambda operator: operator.sizes),
        (number("calls", drop_order=3), lambda operator: f"{operator.calls:,}"),
        (number("FLOPs", drop_order=1), lambda operator: count_text(operator.flops)),
        (number("bytes", drop_order=2), lambda operator: bytes_text(operator.num_bytes)),
        (number("time"), lambda operator: _seconds(operator.seconds)),
        *((number(loss), _lost(loss)) for loss in losses),
    )


def _name(operator: OperatorView) -> str:
    last = [module.rpartition(".*.")[2] for module in operator.names]
    return ", ".join(last) or operator.kind


def _lost(loss: str) -> Callable[[OperatorView], str]:
    return lambda operator: percent_text(operator.lost[loss]) if operator.lost[loss] >= SMALL_SHARE else ""


def _collectives(found: ShapesView) -> Iterator[Block]:
    if not found.collectives:
        return
    yield TitledTable.of(
        "Collectives of a step",
        "Estimated; nothing of them overlaps with passes.",
        found.collectives,
        ("collective", lambda part: part.name),
        (number("sent by a worker"), lambda part: bytes_text(part.num_bytes)),
        (number("time"), lambda part: _seconds(part.seconds)),
    )


def _memory(found: ShapesView) -> FactList:
    total = sum(found.memory_bytes.values())
    text = f"{bytes_text(total)} of {bytes_text(found.device_bytes)}"
    whole = Fact("a worker", Cell(text, "bad") if total > found.device_bytes else text)
    parts = (Fact(part, bytes_text(num_bytes)) for part, num_bytes in found.memory_bytes.items() if num_bytes)
    return FactList([whole, *parts], "Memory")


def _advice(found: ShapesView) -> Iterator[Block]:
    yield Listing([*found.notes, NOT_RUN], "Notes")
    if not found.advice:
        yield Listing(["no width, heads, vocabulary, micro-batch or lanes nearby waste less"], "Less waste")
        return
    table = TitledTable.of(
        "Less waste",
        f"Time saved for as many tokens; {'measured' if found.basis == 'corrected' else 'estimated'}. Depth wastes "
        "nothing: all layers have the same shapes.",
        found.advice,
        (name("change"), lambda one: ", ".join(f"{key}={value}" for key, value in one.patch.items())),
        (number("step"), lambda one: _signed(one.time_saved)),
        (number("for equal work"), lambda one: "" if one.waste_saved == one.time_saved else _signed(one.waste_saved)),
        *_measured(found),
        ("changes", lambda one: CHANGES[one.changes]),
        ("also", lambda one: one.consequence),
    )
    yield replace(table, table=table.table.without_empty_columns())


def _measured(found: ShapesView) -> Iterator[tuple[Column, Callable[[ShapeAdviceView], str]]]:
    if found.basis == "corrected":
        yield number("measured"), lambda one: _signed(one.measured_saved or 0.0)


def _signed(saved: float) -> str:
    return f"{-saved:+.1%}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
