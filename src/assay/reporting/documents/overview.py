"""Pages over all campaigns and over all live runs."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from assay.base.clock import utc_text
from assay.base.units import duration_text, number_of, tenths_text
from assay.records.evaluation import Estimate
from assay.reporting.charts.evidence_plots import ForestRow, forest_plot, is_worse
from assay.reporting.document import (
    Block,
    Cell,
    Document,
    Fact,
    FactList,
    Figure,
    Listing,
    Paragraph,
    Section,
    TitledTable,
    Verdict,
    figure,
)
from assay.reporting.documents.run import last_sign, learning_blocks, progress_facts
from assay.reporting.documents.run_verdict import run_verdict
from assay.reporting.values import device_hours_text
from assay.reporting.views.evidence import CampaignLine
from assay.reporting.views.run import RunView
from assay.reporting.views.run_page import RunPage
from assay.reporting.views.statements import device_time_text, interval_words

NOT_DECIDED = "not yet decided"


def campaigns_document(lines: Sequence[CampaignLine], *, memos: Sequence[tuple[str, str]], now_s: float) -> Document:
    """Return all campaigns with the latest decision of each candidate. `memos`: (file, name) of each campaign's
    memo."""
    campaigns = [(name, list(group)) for name, group in groupby(lines, key=lambda line: line.campaign)]
    spent_s = sum(3600 * campaign_lines_[0].campaign_device_hours for _, campaign_lines_ in campaigns)
    counts = {word: sum(line.recommendation == word for line in lines) for word in ("scale", "narrow", "stop")}
    open_lines = [line for line in lines if line.recommendation is None or not line.is_final]
    return Document(
        name="campaigns",
        title="Campaigns",
        kind="overview",
        subtitle=utc_text(now_s),
        verdict=Verdict(
            "good" if counts["scale"] else "open",
            f"{counts['scale']} to scale",
            f"{number_of(len(campaigns), 'campaign')} with {number_of(len(lines), 'candidate')}: "
            + ", ".join(f"{count} to {word}" for word, count in counts.items())
            + f"; {number_of(len(open_lines), 'candidate')} with a pending look.",
        ),
        tiles=[
            Fact("campaigns", str(len(campaigns)), f"{number_of(len(lines), 'candidate')}"),
            *(Fact(f"to {word}", str(count), "by the newest decision") for word, count in counts.items()),
            Fact("device time", device_hours_text(spent_s), "of the runs that were judged"),
        ],
        sections=[Section(name, list(_campaign(campaign_lines_))) for name, campaign_lines_ in campaigns],
        footer="Read from the ledger; a campaign's memo says where each number comes from. Regenerate with: "
        "assay report --campaigns",
        links=memos,
    )


def _campaign(lines: Sequence[CampaignLine]) -> Iterator[Block]:
    decided = [line for line in lines if line.candidate is not None]
    if not decided:
        yield Paragraph(f"Declared {utc_text(lines[0].created)}; the first look is pending.")
        return
    for unit, group in groupby(sorted(decided, key=lambda line: line.unit or ""), key=lambda line: line.unit or ""):
        yield _gains(list(group), unit)
    yield TitledTable.of(
        "What was decided",
        "",
        decided,
        ("candidate", lambda line: line.candidate or ""),
        ("recommendation", lambda line: line.recommendation or NOT_DECIDED),
        ("gain", lambda line: interval_words(_effect(line), line.unit or "")),
        ("seeds", lambda line: str(line.seeds)),
        ("decision", lambda line: "final" if line.is_final else "a look is pending"),
        ("spent by then", lambda line: device_time_text(3600 * (line.device_hours or 0.0))),
    )


def _gains(lines: Sequence[CampaignLine], unit: str) -> Figure:
    rows = [
        ForestRow(
            line.candidate or "",
            _effect(line),
            line.recommendation or "",
            is_worse(_effect(line), 0.0, higher_is_better=True),
        )
        for line in lines
    ]
    return figure(
        lambda width: forest_plot(
            rows,
            width=width,
            label=f"Gain of each candidate in {unit} with its interval",
            reference=0.0,
            x_label=f"gain over the baseline ({unit})",
        ),
        title="The gain",
        caption="What each gains over its baseline on the primary benchmarks, with its interval. Red: to stop.",
    )


def _effect(line: CampaignLine) -> Estimate:
    return Estimate(value=line.effect or 0.0, low=line.low, high=line.high, confidence=line.confidence or 0.95)


def live_document(pages: Sequence[RunPage], *, now_s: float) -> Document:
    """Return runs in progress and those that ended badly within a day."""
    runs = [page.view for page in pages]
    running = [run for run in runs if run.status == "running"]
    unknown = sum(run.status == "unknown" for run in runs)
    bad = [run for run in runs if run.status in ("failed", "gone")]
    left = [left_s for run in running if (left_s := run.left_s()) is not None]
    return Document(
        name="live",
        title="Live runs",
        kind="overview",
        subtitle=utc_text(now_s),
        verdict=Verdict(
            "bad" if bad else "good" if running and not unknown else "open",
            f"{len(running)} running"
            + (f", {len(bad)} failed or left" if bad else "")
            + (f", {unknown} not heard of for long" if unknown else ""),
            _summary(running, bad, runs),
        ),
        tiles=[
            Fact("running", str(len(running)), number_of(sum(map(_ranks, running)), "rank")),
            Fact("failed or left", str(len(bad)), "within a day"),
            Fact("stopped", str(len(runs) - len(running) - len(bad) - unknown), "within a day"),
            Fact("next to finish", duration_text(min(left)) if left else "—", "at the speed so far"),
        ],
        sections=[Section(page.view.run_id, list(_live_run(page, now_s))) for page in pages],
        footer="Regenerate with: assay report --live. With --every 30 it is written, and read, every 30 s.",
    )


def _summary(running: Sequence[RunView], bad: Sequence[RunView], runs: Sequence[RunView]) -> str:
    if bad:
        return run_verdict(bad[0]).sentence
    if running:
        return f"{number_of(len(running), 'run')} at work; nothing ended badly within a day."
    return "No run is known to be in progress." if runs else "No run is in progress, and none ended badly within a day."


def _ranks(run: RunView) -> int:
    return run.world_sizes[-1] if run.world_sizes else 0


def _live_run(page: RunPage, now_s: float) -> Iterator[Block]:
    run = page.view
    yield Paragraph(Cell(run_verdict(run).sentence, run_verdict(run).tone))
    held = Fact("device time of training", device_hours_text(run.held_s()))
    goodput = [] if run.goodput is None else [Fact("goodput", tenths_text(run.goodput))]
    apart = [Fact("evaluation, apart", device_hours_text(run.evaluation_s()))] if run.evaluation_s() else []
    yield FactList([*progress_facts(run), *last_sign(run, now_s), held, *apart, *goodput])
    yield from learning_blocks(page)
    if run.incidents:
        yield Listing([Cell(run.incidents[-1].text, "open")], "Last incident")
