"""The memo as Markdown: for a pull request, a mail, or a wiki. The same facts as the page, without drawings."""

from collections.abc import Iterator, Sequence

from assay.evaluation.decision.words import device_time_text, effect_text, interval_words
from assay.records.decision import Clause, Decision, GateResult
from assay.reporting.views.memo import (
    WORDS,
    Memo,
    effect_row,
    gain_by_seed,
    link_to,
    lists_of,
    mark_of,
    memo_verdict,
    more_text,
    next_text,
)


def memo_markdown(memo: Memo) -> str:
    """The whole memo."""
    return "\n".join(_lines(memo)) + "\n"


def _lines(memo: Memo) -> Iterator[str]:
    yield f"# {memo.question}"
    yield ""
    yield f"**{memo_verdict(memo).word}.** {memo_verdict(memo).sentence}"
    yield ""
    yield from _table(
        ("candidate", "recommendation", "gain", "cost so far", "next"),
        [
            (
                f"[{each.candidate}](#{each.candidate})",
                f"**{each.recommendation}** ([record]({each.place()}))",
                interval_words(each.effect, each.unit),
                device_time_text(each.spent_s),
                next_text(each),
            )
            for each in memo.decisions
        ],
    )
    yield ""
    yield (
        f"The campaign cost {device_time_text(memo.spent_s())}; {device_time_text(memo.budget_s)} were agreed. "
        "Candidates share the baseline's runs."
    )
    for decision in memo.decisions:
        yield from _candidate(decision)


def _candidate(decision: Decision) -> Iterator[str]:
    yield from ("", f"## {decision.candidate}", "")
    patch = ", ".join(f"`{key}: {value}`" for key, value in decision.patch.items())
    why = f" Tried because {decision.because}." if decision.because else ""
    yield f"{WORDS[decision.recommendation]}. The change: {patch}.{why}"
    for _, title, lines in lists_of(decision):
        yield from ("", f"**{title}**", "")
        yield from (f"- {line}" for line in lines)
    for gate in decision.gates:
        yield from ("", f"**Gate {gate.gate}: {gate.verdict}.** {gate.reason}", "")
        yield from _table(
            ("", "clause", "asks", "seen", "why", "what would turn it"),
            [_clause(gate, clause) for clause in gate.clauses],
        )
    yield from ("", "**Benchmarks**", "")
    header = ("benchmark", "role", "baseline", "candidate", "effect", "could detect", "items")
    yield from _table(header, [effect_row(each) for each in decision.effects])
    yield from ("", "**Records**", "")
    yield from _runs(decision)


def _clause(gate: GateResult, clause: Clause) -> tuple[str, ...]:
    sources = "".join(f" ([record]({link_to(source.path)}))" for source in clause.evidence)
    return (
        mark_of(gate, clause),
        clause.name,
        clause.asks,
        f"{clause.seen}{sources}",
        clause.reason,
        more_text(clause.more),
    )


def _runs(decision: Decision) -> Iterator[str]:
    num_seeds = decision.look.num_seeds
    gains = gain_by_seed(decision)
    rows = []
    for place in range(num_seeds):
        baseline, candidate = decision.runs[place], decision.runs[num_seeds + place]
        results = " ".join(
            f"[{effect.benchmark}]({link_to(source.path)})"
            for effect in decision.effects
            for source in (effect.candidate_results[place],)
        )
        rows.append(
            (
                str(baseline.seed),
                f"[{baseline.run_id}]({link_to(f'{baseline.run_id}/run.json')})",
                f"[{candidate.run_id}]({link_to(f'{candidate.run_id}/run.json')})",
                effect_text(gains[place], decision.unit),
                results,
            )
        )
    yield from _table(("seed", "baseline", "candidate", "gain", "results"), rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        cells = (cell.replace("|", "\\|") for cell in row)
        yield f"| {' | '.join(cells)} |"
