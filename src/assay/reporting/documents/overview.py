"""Pages over all campaigns and over all live runs."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from assay.base.clock import utc_text
from assay.base.units import count_text, duration_text, number_of, tenths_text
from assay.decision.sentences import device_time_text, interval_words
from assay.records.evaluation import Estimate
from assay.reporting.charts.evidence_plots import ForestRow, forest_plot, is_worse
from assay.reporting.charts.run_figures import series_figure
from assay.reporting.document import (
    Block,
    Document,
    Fact,
    Figure,
    Paragraph,
    Section,
    Table,
    TitledTable,
    Verdict,
    figure,
)
from assay.reporting.views.campaign_list import CampaignLine
from assay.reporting.views.live import LiveRun
from assay.reporting.views.series import Series
from assay.reporting.views.verdict import device_hours_text, run_verdict

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


def live_document(runs: Sequence[LiveRun], *, now_s: float) -> Document:
    """Return runs in progress and those that ended badly within a day."""
    running = [run for run in runs if run.view.status == "running"]
    unknown = sum(run.view.status == "unknown" for run in runs)
    bad = [run for run in runs if run.has_ended_badly]
    left = [run.left_s for run in running if run.left_s is not None]
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
            Fact("running", str(len(running)), number_of(sum(_ranks(run) for run in running), "rank")),
            Fact("failed or left", str(len(bad)), "within a day"),
            Fact("stopped", str(len(runs) - len(running) - len(bad) - unknown), "within a day"),
            Fact("next to finish", duration_text(min(left)) if left else "—", "at the speed so far"),
        ],
        sections=[Section(run.view.run_id, list(_live_run(run, now_s))) for run in runs],
        footer="Regenerate with: assay report --live. With --every 30 it is written, and read, every 30 s.",
        links=[],
    )


def _summary(running: Sequence[LiveRun], bad: Sequence[LiveRun], runs: Sequence[LiveRun]) -> str:
    if bad:
        return run_verdict(bad[0].view).sentence
    if running:
        return f"{number_of(len(running), 'run')} at work; nothing ended badly within a day."
    return "No run is known to be in progress." if runs else "No run is in progress, and none ended badly within a day."


def _ranks(run: LiveRun) -> int:
    return run.view.world_sizes[-1] if run.view.world_sizes else 0


def _live_run(run: LiveRun, now_s: float) -> Iterator[Block]:
    view = run.view
    yield Paragraph(run_verdict(view).sentence)
    yield TitledTable("How it stands", "", Table(("", ""), list(_facts(run, now_s))))
    for curve in (run.series.loss, run.series.throughput):
        if curve is not None:
            yield _curve(curve)
    if view.incidents:
        yield Paragraph(f"Noticed last: {view.incidents[-1].text}")


def _facts(run: LiveRun, now_s: float) -> Iterator[tuple[str, str]]:
    view = run.view
    reached = max((attempt.reached_step for attempt in view.attempts), default=0)
    yield "step", f"{reached:,} of {view.total_steps:,}; committed: {view.step:,}"
    yield "ranks", f"{_ranks(run)}, attempt {len(view.attempts)}"
    if view.speed is not None:
        tokens = "" if view.speed.tokens_per_s is None else f", {count_text(view.speed.tokens_per_s)} tokens/s"
        yield "speed", f"{view.speed.steps_per_s:.3g} steps/s{tokens}"
    if run.left_s is not None:
        yield "time left", f"{duration_text(run.left_s)}, at the speed so far"
    if view.last_seen is not None:
        yield "last sign of life", f"{duration_text(max(0.0, now_s - view.last_seen))} ago"
    yield "device time of training", device_hours_text(view.held_s())
    if view.evaluation_s():
        yield "evaluation, apart", device_hours_text(view.evaluation_s())
    if view.goodput is not None:
        yield "goodput", tenths_text(view.goodput)


def _curve(curve: Series) -> Figure:
    is_loss = curve.name == "loss"
    return series_figure(
        [curve],
        title="Training loss" if is_loss else "Throughput",
        caption="The line is the mean; the band spans the minimum to the maximum." if is_loss else "Over all ranks.",
        y_label="loss" if is_loss else "tokens per second",
        zero_based=not is_loss,
        size="half",
    )
