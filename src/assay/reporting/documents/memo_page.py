"""The memo as one self-contained HTML page. Numbers link to their records, which the page embeds so that it can
be mailed."""

from assay.base.clock import utc_text
from assay.base.units import duration_text
from assay.decision.sentences import device_time_text
from assay.records.decision import Clause, Decision
from assay.reporting.charts.memo_figures import memo_figures
from assay.reporting.documents.render import render_page
from assay.reporting.views import memo as view
from assay.reporting.views.memo import Memo, anchor_of, memo_tiles, memo_verdict


def render_memo_page(memo: Memo) -> str:
    """Return the memo as HTML."""
    return render_page(
        "memo.html",
        title=memo.question,
        kind="decision memo",
        subtitle=utc_text(memo.declared_s),
        verdict=memo_verdict(memo),
        tiles=memo_tiles(memo),
        sections=[("What was found", memo_figures(memo))],
        memo=memo,
        view=view,
        anchor_of=anchor_of,
        clause_link=_clause_link,
        device_time=device_time_text,
        duration=duration_text,
        zip=zip,
    )


def _clause_link(decision: Decision, clause: Clause) -> str:
    """Return a link to the results or runs behind the clause's number."""
    if clause.benchmarks:
        return f"#{decision.candidate}-{clause.benchmarks[0]}"
    return f"#{decision.candidate}-runs"
