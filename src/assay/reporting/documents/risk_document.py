"""The risk register: what each risk costs, which mitigations help, and what drives date and cost."""

from collections.abc import Iterator

import numpy as np

from assay.base.units import number_of, percent_text
from assay.planning.program.program import Program
from assay.planning.simulation.drivers import RegisterLine
from assay.planning.simulation.offer_report import OfferReport
from assay.reporting.charts.risk_figures import tornado_figure
from assay.reporting.document import Block, Document, Section, Table, TitledTable, Verdict
from assay.reporting.documents.plan_documents import (
    DOCUMENT_LINKS,
    FOOT,
    date_figure,
    date_range_text,
    money_figure,
    safety_tiles,
)
from assay.reporting.views.verdict import signed_text
from assay.store.settings import HourPrice


def risk_register(report: OfferReport, price: HourPrice | None = None) -> Document:
    """Return risks by cost, with their mitigations."""
    program, offer = report.offered.program, report.offered.offer
    return Document(
        name="risk-register",
        title=f"Risks: {program.title}",
        kind="risk register",
        subtitle=date_range_text(program),
        verdict=_verdict(report),
        tiles=safety_tiles(program, offer.safety, price),
        sections=[
            Section("How sure are date and money", [date_figure(report), money_figure(report)]),
            Section("The register", [_register(program, report.register), *_mitigations(report)]),
            Section(
                "What date and budget depend on",
                [tornado_figure(report.drivers, now=offer.safety.p_on_time, num_samples=report.num_few_samples)],
            ),
            Section("Where the device-hours go", [_stages(report)]),
        ],
        footer=FOOT,
        links=DOCUMENT_LINKS,
    )


def _verdict(report: OfferReport) -> Verdict:
    worst = report.register[0] if report.register else None
    offer = report.offered.offer
    if worst is None:
        return Verdict("open", "no risks stated", "The program states no risks; only noise was simulated.")
    best = [
        (line, mitigation)
        for line in report.register
        for mitigation in line.mitigations
        if mitigation.after.p_within_limits > line.now.p_within_limits + 0.002
    ]
    sentence = (
        f"The dearest risk is '{worst.risk.title.lower()}': without it, a decision in time and in budget would "
        f"be {100 * worst.cost():.1f} points likelier. "
    )
    if best:
        line, mitigation = max(best, key=lambda pair: pair[1].after.p_within_limits - pair[0].now.p_within_limits)
        gain = 100 * (mitigation.after.p_within_limits - line.now.p_within_limits)
        sentence += f"What helps most: '{mitigation.title[0].lower()}{mitigation.title[1:]}' ({gain:+.1f} points)."
    else:
        sentence += "No mitigation that was tried helps on balance."
    return Verdict("good" if offer.meets_targets else "bad", number_of(len(report.register), "risk"), sentence)


def _register(program: Program, lines: tuple[RegisterLine, ...]) -> TitledTable:
    return TitledTable.of(
        "Ranked by what they cost",
        "Cost: by how much a decision in time and in budget would be likelier were the risk known not to "
        "come, in points of a percentage. Date and device-hours: by how much their means over all simulations are "
        "later, and more, for it.",
        lines,
        ("risk", lambda line: line.risk.title),
        ("probability", lambda line: percent_text(line.risk.probability)),
        ("cost", lambda line: f"{100 * line.cost():.1f} pt"),
        ("date", lambda line: f"{signed_text(line.now.decision_day - line.without.decision_day, 1)} d"),
        ("device-hours", lambda line: signed_text(line.now.device_hours - line.without.device_hours)),
        ("who watches", lambda line: program.title_of(line.risk.owner)),
        ("seen first", lambda line: line.risk.sign or "—"),
    )


def _mitigations(report: OfferReport) -> Iterator[Block]:
    chosen = {move.name for move in report.offered.offer.moves}
    rows = [
        (
            mitigation.title,
            line.risk.title,
            f"{signed_text(100 * (mitigation.after.p_on_time - line.now.p_on_time), 1)} pt",
            f"{signed_text(100 * (mitigation.after.p_over_budget - line.now.p_over_budget), 1)} pt",
            signed_text(mitigation.after.device_hours - line.now.device_hours),
            "taken"
            if f"{line.name}: {mitigation.name}" in chosen
            else _advice(line.now.p_within_limits, mitigation.after.p_within_limits),
        )
        for line in report.register
        for mitigation in line.mitigations
    ]
    if rows:
        yield TitledTable(
            "Mitigations, tried in the model",
            "Each alone, its own work included: the change in both shares, and in the mean of the "
            f"device-hours. {report.num_few_samples:,} simulations each.",
            Table(("mitigation", "against", "on time", "over budget", "device-hours", "advice"), rows),
        )


def _advice(before: float, after: float) -> str:
    if after > before + 0.002:
        return "helps"
    return "costs more than it saves" if after < before - 0.002 else "makes no difference"


def _stages(report: OfferReport) -> TitledTable:
    offered = report.offered
    planned: dict[str, float] = dict.fromkeys(offered.program.stages, 0.0)
    nodes = offered.program.nodes()
    for item in offered.offer.plan.items:
        planned[nodes[item.name].stage] += item.device_hours()
    rows = []
    for stage, hours in offered.outcome.stage_device_hours().items():
        low, high = np.quantile(hours, (0.1, 0.9))
        limit = offered.program.budget.stages.get(stage)
        rows.append(
            (
                offered.program.stages[stage].title,
                f"{planned[stage]:,.0f}",
                f"{hours.mean():,.0f}",
                f"{low:,.0f} to {high:,.0f}",
                f"{limit:,.0f}" if limit else "—",
            )
        )
    return TitledTable(
        "By stage",
        "Planned when nothing happens; the mean and four fifths of the simulations, stopped ones included.",
        Table(("stage", "planned", "mean", "80% of simulations", "limit"), rows),
    )
