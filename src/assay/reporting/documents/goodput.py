"""The document of goodput: where device time went, and what each interruption cost."""

from collections.abc import Mapping

from assay.base.clock import utc_text
from assay.base.units import duration_text, number_of, tenths_text
from assay.records.goodput import Goodput, Interruption
from assay.reporting.document import (
    Block,
    Document,
    Fact,
    FactList,
    Paragraph,
    Section,
    Table,
    TitledTable,
    name,
    number,
)
from assay.reporting.values import device_hours_text
from assay.store.settings import Money


def goodput_document(goodput: Goodput, parts: Mapping[str, Goodput], *, of: str) -> Document:
    """Return the phases, a row for each part (`of` names what a part is), and each interruption's cost."""
    count = number_of(len(goodput.run_ids), "run")
    apart = []
    if goodput.evaluation_device_s:
        apart.append(
            Fact("evaluation of commits", device_hours_text(goodput.evaluation_device_s), "apart from training")
        )
    if not goodput.held_device_s:
        return Document(
            title=f"goodput of {count}",
            kind="goodput",
            sections=[Section("", [Paragraph("no attempt has ended yet: nothing was held."), FactList(apart)])],
        )
    facts = [
        Fact("goodput", tenths_text(goodput.goodput())),
        Fact("ETTR", tenths_text(goodput.ettr()), "also counts the time between attempts"),
        Fact("held", device_hours_text(goodput.held_device_s)),
        *apart,
    ]
    if goodput.cost is not None:
        facts.append(Fact("cost", str(Money(goodput.cost, goodput.currency))))
    if goodput.num_open_attempts:
        facts.append(Fact("left out", f"{goodput.num_open_attempts:,}", "attempts without a recorded end"))
    blocks: list[Block] = [_phases(goodput)]
    if parts:
        blocks.append(goodput_parts(parts, of))
    if goodput.interruptions:
        blocks.append(_interruptions(goodput))
    return Document(
        title=f"goodput of {count}",
        kind="goodput",
        tiles=facts,
        sections=[Section("", [*blocks, Paragraph(_advice(goodput))])],
    )


def _phases(goodput: Goodput) -> Block:
    return TitledTable.of(
        "",
        "",
        sorted(goodput.by_phase.items(), key=lambda part: -part[1]),
        (name("phase"), lambda part: part[0]),
        (number("device time"), lambda part: device_hours_text(part[1])),
        (number("share"), lambda part: tenths_text(part[1] / goodput.held_device_s)),
    )


def goodput_parts(parts: Mapping[str, Goodput], of: str) -> Block:
    """Return a table with a row for each part; `of` names what a part is."""

    def cost(part: Goodput) -> str:
        return "" if part.cost is None else str(Money(part.cost, part.currency))

    table = Table.of(
        parts.items(),
        (name(of), lambda part: part[0]),
        (number("runs", drop_order=1), lambda part: str(len(part[1].run_ids)) if of == "activity" else ""),
        (number("device time"), lambda part: device_hours_text(part[1].held_device_s)),
        (number("cost", drop_order=3), lambda part: cost(part[1])),
        (number("goodput"), lambda part: tenths_text(part[1].goodput()) if part[1].held_device_s else "-"),
        (number("ETTR", drop_order=4), lambda part: tenths_text(part[1].ettr()) if part[1].held_device_s else "-"),
        (number("interruptions"), lambda part: str(len(part[1].interruptions))),
        (number("their cost", drop_order=2), lambda part: device_hours_text(part[1].interruptions_device_s())),
    )
    return TitledTable("", "", table.without_empty_columns())


def _interruptions(goodput: Goodput) -> Block:
    return TitledTable.of(
        "",
        "",
        goodput.interruptions,
        ("interruption", lambda found: f"{utc_text(found.at_s)}  {_what_happened(found)}"),
        (name("attempt"), lambda found: f"{found.run_id} {found.attempt}"),
        (number("cost"), lambda found: device_hours_text(found.cost_device_s())),
        (number("lost", drop_order=1), lambda found: duration_text(found.lost_device_s)),
        (number("stalled", drop_order=2), lambda found: duration_text(found.stalled_device_s)),
        (number("restart", drop_order=3), lambda found: duration_text(found.startup_device_s)),
        (number("waited", drop_order=4), lambda found: duration_text(found.waited_device_s)),
    )


def _advice(goodput: Goodput) -> str:
    if goodput.failure_s is None:
        return "no interruption on record: nothing to weigh the cost of commits against."
    if goodput.optimal_commit_s is None or goodput.commit_s is None:
        return "no commit on record in an attempt that has ended, so the cost of a commit is unknown."
    steps = (
        f", about {number_of(max(1, round(goodput.optimal_commit_s / goodput.step_s)), 'step')}"
        if goodput.step_s
        else ""
    )
    return (
        f"a commit holds a rank up for {1000 * goodput.commit_s:.0f} ms, an interruption comes every "
        f"{duration_text(goodput.failure_s)}: best is a commit every {duration_text(goodput.optimal_commit_s)}"
        f"{steps} (Daly 2006). In a recipe, 'trainer.commit_every: auto' does that."
    )


def _what_happened(interruption: Interruption) -> str:
    """Return the start of the failure's text."""
    failure = interruption.failure
    text = failure.headline() if failure else interruption.reason
    return text if len(text) <= 60 else f"{text[:59].rsplit(' ', 1)[0]} …"
