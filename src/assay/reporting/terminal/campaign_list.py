"""The list of campaigns on a terminal."""

from collections.abc import Sequence

from rich.text import Text

from assay.base.units import duration_text
from assay.records.evaluation import Estimate
from assay.reporting.terminal.terminal import RECOMMENDATION_STYLES, name, number, print_list
from assay.reporting.values import minute_text
from assay.reporting.views.evidence import CampaignLine
from assay.reporting.views.statements import interval_words


def print_campaigns(lines: Sequence[CampaignLine]) -> None:
    """Print a row for each candidate; before the first look only the campaign is shown."""
    print_list(
        lines,
        (name("campaign"), lambda line: line.campaign),
        (name("candidate"), lambda line: line.candidate or ""),
        (name("decision"), _decision),
        (name("effect"), _effect),
        (number("seeds"), lambda line: "" if line.seeds is None else str(line.seeds)),
        (
            number("device time"),
            lambda line: "" if line.device_hours is None else duration_text(3600.0 * line.device_hours),
        ),
        (number("declared (UTC)"), lambda line: minute_text(line.created)),
        dispensable=("declared (UTC)", "device time", "seeds", "effect"),
    )


def _decision(line: CampaignLine) -> str | Text:
    if line.recommendation is None:
        return "no look yet"
    word = line.recommendation + ("" if line.is_final else ", open")
    return Text(word, style=RECOMMENDATION_STYLES[line.recommendation])


def _effect(line: CampaignLine) -> str:
    if line.effect is None or line.confidence is None:
        return ""
    effect = Estimate(value=line.effect, low=line.low, high=line.high, confidence=line.confidence)
    return interval_words(effect, line.unit or "")
