"""The table of campaigns."""

from collections.abc import Callable, Sequence

from assay.base.units import duration_text
from assay.records.decision import Recommendation
from assay.records.evaluation import Estimate
from assay.reporting.document import Cell, Table, Text, Tone, name, number
from assay.reporting.values import minute_text
from assay.reporting.views.evidence import CampaignLine
from assay.reporting.views.statements import interval_words

TONES: dict[Recommendation, Tone] = {"scale": "good", "narrow": "open", "stop": "ended"}


def campaigns_table(
    lines: Sequence[CampaignLine], *, address: Callable[[CampaignLine], str] = lambda line: ""
) -> Table:
    """Return a row for each candidate; before the first look only the campaign is shown. `address`: of the memo."""
    return Table.of(
        lines,
        (name("campaign"), lambda line: Cell(line.campaign, link=address(line))),
        (name("candidate"), lambda line: line.candidate or ""),
        (name("decision"), _decision),
        (name("effect", drop_order=1), _effect),
        (number("seeds", drop_order=2), lambda line: "" if line.seeds is None else str(line.seeds)),
        (
            number("device time", drop_order=3),
            lambda line: "" if line.device_hours is None else duration_text(3600.0 * line.device_hours),
        ),
        (number("declared (UTC)", drop_order=4), lambda line: minute_text(line.created)),
    )


def _decision(line: CampaignLine) -> Text:
    if line.recommendation is None:
        return "no look yet"
    return Cell(line.recommendation + ("" if line.is_final else ", open"), TONES[line.recommendation])


def _effect(line: CampaignLine) -> str:
    if line.effect is None or line.confidence is None:
        return ""
    effect = Estimate(value=line.effect, low=line.low, high=line.high, confidence=line.confidence)
    return interval_words(effect, line.unit or "")
