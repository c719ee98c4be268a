"""The memo as one self-contained HTML page; every number is a link to its record, relative to the memo's
folder."""

from assay.base.clock import utc_text
from assay.base.units import duration_text
from assay.evaluation.decision.words import device_time_text, interval_words
from assay.records.decision import Clause, Decision, GateResult
from assay.reporting.figures.memo_figures import memo_figures
from assay.reporting.pages.render import render_page
from assay.reporting.views import memo as view
from assay.reporting.views.memo import Memo, link_to, memo_tiles, memo_verdict
from assay.reporting.views.verdict import Tone


def render_memo_page(memo: Memo) -> str:
    """The page; it is made to lie in the campaign's folder."""
    return render_page(
        "memo.html",
        title=memo.question,
        kind="decision memo",
        made=utc_text(memo.made_s),
        verdict=memo_verdict(memo),
        tiles=memo_tiles(memo),
        sections=[("What was found", memo_figures(memo))],
        memo=memo,
        view=view,
        clause_tone=_clause_tone,
        clause_link=_clause_link,
        device_time=device_time_text,
        duration=duration_text,
        interval_words=interval_words,
        zip=zip,
    )


def _clause_tone(gate: GateResult, clause: Clause) -> Tone:
    """A stop condition that holds is bad news; one that does not is none."""
    if gate.then != "scale":
        return "bad" if clause.verdict == "pass" else "good"
    return {"pass": "good", "fail": "bad", "undecided": "open"}[clause.verdict]  # type: ignore[return-value]


def _clause_link(decision: Decision, clause: Clause) -> str:
    """To the record behind the clause's number: another record, the benchmark's results, or the runs."""
    if clause.evidence:
        return link_to(clause.evidence[0].path)
    if clause.benchmarks:
        return f"#{decision.candidate}-{clause.benchmarks[0]}"
    return f"#{decision.candidate}-runs"
