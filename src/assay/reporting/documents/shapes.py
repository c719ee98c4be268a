"""The document of `assay doctor shapes`."""

from collections.abc import Iterator
from dataclasses import replace

from assay.base.units import bytes_text, count_text, percent_text
from assay.reporting.document import Block, Cell, Document, Fact, FactList, Listing, Section, TitledTable, name, number
from assay.reporting.views.shapes import OperatorView, ShapeAdviceView, ShapesView
from assay.throughput.shape_changes import Changed

SMALL_SHARE = 0.005
"""Operators with a smaller share of a pass are left out, and so are smaller losses."""
LOSSES = ("tiles", "waves", "alignment", "vocabulary")
NOT_RUN = "on a GPU, the order of these estimates was never compared with measured steps (docs/shapes.md)"
CHANGES: dict[Changed, str] = {"rounding": "rounding only", "training": "what is learned", "model": "the model"}


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
    basis = "corrected by passes that were timed on this machine" if found.is_measured else "nothing was measured"
    yield Fact("step", _seconds(found.step_s), f"{text}; estimate: {basis}")
    shares = {part: seconds / found.pass_s for part, seconds in found.pass_parts_s.items() if seconds}
    text = ", ".join(f"{part} {percent_text(share)}" for part, share in shares.items())
    yield Fact("pass", _seconds(found.pass_s), f"{text}; {found.passes:g} on the busiest worker")
    yield Fact("micro-batch", f"rows: {found.rows:,}", f"tokens, padding counted: {found.tokens:,}")
    if found.model_share:
        yield Fact("rate", percent_text(found.model_share), "FLOPs of a pass over the data sheet's bfloat16 rate")


def _operators(found: ShapesView) -> TitledTable:
    device_s = found.pass_s - found.pass_parts_s["host"]
    shown = [operator for operator in found.operators if operator.seconds > SMALL_SHARE * device_s]
    table = TitledTable.of(
        "Operators of a pass",
        "Estimated. Sizes are rows x inputs x outputs, or sequences x tokens x heads x width.",
        shown,
        ("operator", _name),
        (name("sizes"), lambda operator: operator.sizes),
        (number("calls", drop_order=3), lambda operator: f"{operator.calls:,}"),
        (number("FLOPs", drop_order=1), lambda operator: count_text(operator.flops)),
        (number("bytes", drop_order=2), lambda operator: bytes_text(operator.num_bytes)),
        (number("time"), lambda operator: _seconds(operator.seconds)),
        *((number(loss), lambda operator, loss=loss: _lost(operator, loss)) for loss in LOSSES),
    )
    return replace(table, table=table.table.without_empty_columns())


def _name(operator: OperatorView) -> str:
    last = [module.rpartition(".*.")[2] for module in operator.names]
    return ", ".join(last) or operator.kind


def _lost(operator: OperatorView, loss: str) -> str:
    share = operator.lost.get(loss, 0.0)
    return percent_text(share) if share >= SMALL_SHARE else ""


def _collectives(found: ShapesView) -> Iterator[Block]:
    if found.collectives:
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
    if notes := [*found.notes, *([] if found.is_measured else [NOT_RUN])]:
        yield Listing(notes, "Notes")
    if not found.advice:
        yield Listing(["no width, heads, vocabulary, micro-batch or lanes nearby waste less"], "Less waste")
        return
    table = TitledTable.of(
        "Less waste",
        f"Time saved for as many tokens; {'measured' if found.is_measured else 'estimated'}. Depth wastes "
        "nothing: all layers have the same shapes.",
        found.advice,
        (name("change"), lambda one: ", ".join(f"{key}={value}" for key, value in one.patch.items())),
        (number("step"), lambda one: _signed(_time_saved(one))),
        (number("estimated"), lambda one: "" if one.measured_saved is None else _signed(one.time_saved)),
        (number("for equal work"), lambda one: "" if one.waste_saved == _time_saved(one) else _signed(one.waste_saved)),
        ("changes", lambda one: CHANGES[one.changes]),
        ("also", lambda one: one.consequence),
    )
    yield replace(table, table=table.table.without_empty_columns())


def _time_saved(one: ShapeAdviceView) -> float:
    return one.time_saved if one.measured_saved is None else one.measured_saved


def _signed(saved: float) -> str:
    return f"{-saved:+.1%}"


def _seconds(seconds: float) -> str:
    """Return `1.2 s`, `23.4 ms` or `7.1 µs`."""
    if seconds >= 1.0:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"
