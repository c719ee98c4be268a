"""The campaigns of a home with the newest decision of each candidate: a table, and a document around it."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from assay.base.clock import utc_text
from assay.base.units import duration_text, number_of
from assay.records.decision import Recommendation
from assay.records.evaluation import Estimate
from assay.reporting.charts.evidence_plots import ForestRow, forest_plot, is_worse
from assay.reporting.document import (
    Cell,
    Document,
    Fact,
    Figure,
    Section,
    Table,
    Text,
    TitledTable,
    Tone,
    Verdict,
    figure,
    name,
    number,
)
from assay.reporting.values import device_hours_text, minute_text
from assay.reporting.views.evidence import CampaignLine
from assay.reporting.views.statements import interval_words

TONES: dict[Recommendation, Tone] = {"scale": "good", "narrow": "open", "stop": "ended"}


def campaigns_document(
    lines: Sequence[CampaignLine],
    *,
    shown: range,
    address: Callable[[CampaignLine], str],
    now_s: float,
    links: Sequence[tuple[str, str]] = (),
) -> Document:
    """Return the sums over all lines, and the table of some. `shown`: those with a row. `address`: of the memo."""
    spent_s = sum({line.campaign: 3600 * line.campaign_device_hours for line in lines}.values())
    counts = {word: sum(line.recommendation == word for line in lines) for word in TONES}
    num_open = sum(line.recommendation is None or not line.is_final for line in lines)
    campaigns = number_of(len({line.campaign for line in lines}), "campaign")
    candidates = number_of(sum(line.candidate is not None for line in lines), "candidate")
    rows = [lines[at] for at in shown]
    decided = ", ".join(f"{count} to {word}" for word, count in counts.items() if count) or "no decision yet"
    pending = f"; {number_of(num_open, 'look is', 'looks are')} pending" if num_open else ", and no look is pending"
    verdict = Verdict("good" if counts["scale"] else "open", decided, f"{campaigns} with {candidates}{pending}.")
    return Document(
        title="Decisions",
        kind="campaigns",
        subtitle=utc_text(now_s),
        verdict=verdict,
        tiles=[
            Fact("campaigns", campaigns.partition(" ")[0], candidates),
            *(Fact(f"to {word}", str(count), "by the newest decision") for word, count in counts.items()),
            Fact("device time", device_hours_text(spent_s), "of the campaigns' runs"),
        ],
        sections=[Section("", [TitledTable("", "", campaigns_table(rows, address=address)), *_gains(rows)])],
        footer="The same as JSON: assay decide list --json",
        links=links,
    )


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
    return "" if (effect := _estimate(line)) is None else interval_words(effect, line.unit or "")


def _estimate(line: CampaignLine) -> Estimate | None:
    if line.effect is None or line.confidence is None:
        return None
    return Estimate(value=line.effect, low=line.low, high=line.high, confidence=line.confidence)


def _gains(lines: Sequence[CampaignLine]) -> Iterator[Figure]:
    """Yield a forest plot of the candidates' gains for each unit."""
    decided_lines = sorted((line for line in lines if _estimate(line) is not None), key=lambda line: line.unit or "")
    for unit, group in groupby(decided_lines, key=lambda line: line.unit or ""):
        yield gains_figure(unit, [_forest_row(line) for line in group])


def gains_figure(unit: str, rows: Sequence[ForestRow]) -> Figure:
    """Return the forest plot of gains in a unit."""
    return figure(
        lambda width: forest_plot(
            rows,
            width=width,
            label=f"Gain of each candidate in {unit} with its interval",
            reference=0.0,
            x_label=f"gain over the baseline ({unit})",
        ),
        title=f"The gain in {unit}",
        caption="What each gains over its baseline on the primary benchmarks, with its interval. Red: worse.",
    )


def _forest_row(line: CampaignLine) -> ForestRow:
    effect = _estimate(line)
    is_bad = is_worse(effect, 0.0, higher_is_better=True)
    return ForestRow(f"{line.campaign}: {line.candidate}", effect, line.recommendation or "", is_bad)
