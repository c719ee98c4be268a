"""The memo as Markdown, for a pull request, a mail or a wiki. It has the facts of the page without drawings.
Records are named by their path in the folder of runs, because links would not resolve elsewhere."""

from collections.abc import Iterator
from urllib.parse import quote

from assay.decision.sentences import device_time_text, effect_text
from assay.records.decision import Clause, Decision, GateResult
from assay.reporting.document import Table
from assay.reporting.documents.markdown import code, markdown_table, plain, quoted
from assay.reporting.views import memo as view
from assay.reporting.views.memo import Memo


def memo_markdown(memo: Memo) -> str:
    """Return the memo as Markdown."""
    return "\n".join(_lines(memo)) + "\n"


def _lines(memo: Memo) -> Iterator[str]:
    yield f"# {plain(memo.question)}"
    yield ""
    verdict = view.memo_verdict(memo)
    yield f"**{plain(verdict.word)}.** {plain(verdict.sentence)}"
    yield ""
    if verdict.marks:
        yield " · ".join(plain(mark.text()) for mark in verdict.marks)
        yield ""
    table = Table.of(
        memo.decisions,
        ("candidate", lambda decision: f"[{plain(decision.candidate)}](#{quote(decision.candidate)})"),
        ("next", lambda decision: plain(view.next_text(decision))),
        ("who", lambda decision: plain(view.who_text(decision))),
        ("instead", lambda decision: plain(view.instead_text(decision))),
        ("cost so far", lambda decision: device_time_text(decision.spent_s)),
        ("decision", lambda decision: code(view.decision_path(decision))),
    )
    yield from markdown_table(table)
    yield ""
    yield (
        f"Training cost {device_time_text(memo.spent_s())}{f' ({plain(memo.cost)})' if memo.cost else ''}; "
        f"{device_time_text(memo.budget_s)} were agreed. "
        f"{plain(view.cost_note(memo))}"
    )
    for decision in memo.decisions:
        yield from _candidate(decision)


def _candidate(decision: Decision) -> Iterator[str]:
    yield from ("", f"## {plain(decision.candidate)}", "")
    patch = ", ".join(code(f"{key}: {value}") for key, value in decision.patch.items())
    why = f" Tried because {plain(decision.because)}." if decision.because else ""
    yield f"The change: {patch}.{why}"
    yield from ("", plain(view.least_text(decision)))
    if decision.meaning:
        yield from ("", f"What it means. {plain(' '.join(decision.meaning))}")
    for _, title, lines in view.lists_of(decision):
        yield from ("", f"**{title}**", "")
        yield from (f"- {plain(line)}" for line in lines)
    for gate in decision.gates:
        yield from ("", f"**Gate {plain(gate.gate)}: {view.gate_text(gate)}.** {plain(gate.reason)}", "")
        yield from markdown_table(_clauses(decision, gate))
        if unasked := view.unasked_text(decision, gate):
            yield from ("", plain(unasked))
    yield from ("", f"**Benchmarks.**{view.effects_note(decision)}", "")
    effects = Table(view.EFFECT_COLUMNS, [view.effect_row(effect) for effect in view.all_effects(decision)])
    yield from markdown_table(quoted(effects))
    yield from ("", "**Records**", "")
    yield from markdown_table(_runs(decision))


def _clauses(decision: Decision, gate: GateResult) -> Table:
    def seen(clause: Clause) -> str:
        sources = "".join(f" ({code(source.path)})" for source in clause.evidence)
        return f"{plain(clause.seen)}{sources}"

    return Table.of(
        gate.clauses,
        ("", lambda clause: view.mark_of(decision, gate, clause)),
        ("clause", lambda clause: plain(clause.name)),
        ("asks", lambda clause: plain(clause.requirement)),
        ("seen", seen),
        ("why", lambda clause: plain(clause.reason)),
        ("what would turn it", lambda clause: plain(view.fix_text(decision, gate, clause))),
    )


def _runs(decision: Decision) -> Table:
    num_seeds, gains = decision.look.num_seeds, view.gain_by_seed(decision)

    def model(index: int) -> str:
        arms = decision.runs[index], decision.runs[num_seeds + index]
        return plain(view.models_text(arms))

    def results(index: int) -> str:
        return " ".join(code(effect.candidate_results[index].path) for effect in decision.effects)

    return Table.of(
        range(num_seeds),
        ("seed", lambda index: str(decision.runs[index].seed)),
        ("baseline", lambda index: code(decision.runs[index].run_id)),
        ("candidate", lambda index: code(decision.runs[num_seeds + index].run_id)),
        ("gain", lambda index: plain(effect_text(gains[index], decision.unit))),
        ("model", model),
        ("results", results),
    )
