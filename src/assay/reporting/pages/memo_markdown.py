"""The memo as Markdown: for a pull request, a mail, or a wiki. The same facts as the page, without drawings;
records are named by their place in the folder of runs, to which no link leads from there."""

from collections.abc import Iterator

from assay.evaluation.decision.words import device_time_text, effect_text, interval_words
from assay.records.decision import Clause, Decision, GateResult
from assay.reporting.figures.figure import Table
from assay.reporting.pages.document import markdown_table
from assay.reporting.views import memo as view
from assay.reporting.views.memo import Memo


def memo_markdown(memo: Memo) -> str:
    """The whole memo."""
    return "\n".join(_lines(memo)) + "\n"


def _lines(memo: Memo) -> Iterator[str]:
    yield f"# {memo.question}"
    yield ""
    verdict = view.memo_verdict(memo)
    yield f"**{verdict.word}.** {verdict.sentence}"
    yield ""
    if verdict.marks:
        yield " · ".join(mark.text() for mark in verdict.marks)
        yield ""
    table = Table.of(
        memo.decisions,
        ("candidate", lambda each: f"[{each.candidate}](#{each.candidate})"),
        ("recommendation", lambda each: f"**{each.recommendation}** (`{view.place_of(each)}`)"),
        ("gain", lambda each: interval_words(each.effect, each.unit)),
        ("cost so far", lambda each: device_time_text(each.spent_s)),
        ("next", view.next_text),
    )
    yield from markdown_table(table)
    yield ""
    yield (
        f"The campaign cost {device_time_text(memo.spent_s())}{f' ({memo.cost})' if memo.cost else ''}; "
        f"{device_time_text(memo.budget_s)} were agreed. "
        "Candidates share the baseline's runs."
    )
    for decision in memo.decisions:
        yield from _candidate(decision)


def _candidate(decision: Decision) -> Iterator[str]:
    yield from ("", f"## {decision.candidate}", "")
    patch = ", ".join(f"`{key}: {value}`" for key, value in decision.patch.items())
    why = f" Tried because {decision.because}." if decision.because else ""
    yield f"{view.WORDS[decision.recommendation]}. The change: {patch}.{why}"
    for _, title, lines in view.lists_of(decision):
        yield from ("", f"**{title}**", "")
        yield from (f"- {line}" for line in lines)
    for gate in decision.gates:
        yield from ("", f"**Gate {gate.gate}: {view.gate_text(gate)}.** {gate.reason}", "")
        yield from markdown_table(_clauses(gate))
    yield from ("", "**Benchmarks**", "")
    yield from markdown_table(Table(view.EFFECT_COLUMNS, [view.effect_row(each) for each in decision.effects]))
    yield from ("", "**Records**", "")
    yield from markdown_table(_runs(decision))


def _clauses(gate: GateResult) -> Table:
    def seen(clause: Clause) -> str:
        sources = "".join(f" (`{source.path}`)" for source in clause.evidence)
        return f"{clause.seen}{sources}"

    return Table.of(
        gate.clauses,
        ("", lambda clause: view.mark_of(gate, clause)),
        ("clause", lambda clause: clause.name),
        ("asks", lambda clause: clause.asks),
        ("seen", seen),
        ("why", lambda clause: clause.reason),
        ("what would turn it", lambda clause: view.more_text(clause.more)),
    )


def _runs(decision: Decision) -> Table:
    num_seeds, gains = decision.look.num_seeds, view.gain_by_seed(decision)

    def model(place: int) -> str:
        both = decision.runs[place], decision.runs[num_seeds + place]
        return " ".join(dict.fromkeys(map(view.model_text, both)))

    def results(place: int) -> str:
        return " ".join(f"`{each.candidate_results[place].path}`" for each in decision.effects)

    return Table.of(
        range(num_seeds),
        ("seed", lambda place: str(decision.runs[place].seed)),
        ("baseline", lambda place: f"`{decision.runs[place].run_id}`"),
        ("candidate", lambda place: f"`{decision.runs[num_seeds + place].run_id}`"),
        ("gain", lambda place: effect_text(gains[place], decision.unit)),
        ("model", model),
        ("results", results),
    )
