"""The document of costs: device-hours and money by project, program, person or day."""

from collections.abc import Callable
from decimal import Decimal

from assay.base.clock import utc_text
from assay.base.units import number_of, percent_text
from assay.reporting.document import (
    Block,
    Cell,
    Document,
    Fact,
    Paragraph,
    Section,
    Table,
    TitledTable,
    Verdict,
    name,
    number,
)
from assay.reporting.values import one_line
from assay.reporting.views.cost import CostLine, CostReport
from assay.store.settings import Money

MAX_INTERRUPTIONS = 50
WITHOUT_PRICES = "For money, give each kind of device a price: device_hour_prices in settings.yaml."
UNITS = "In device-hours. Other: startup, commits and idle time. Waiting for a restart is not held, so not paid."
WITHOUT = {"project": "none ('assay train')", "program": "none", "person": "unknown", "day": ""}


def cost_document(report: CostReport, *, address: Callable[[str], str] = lambda run_id: "") -> Document:
    """Return the sums, and what the interruptions cost. `address`: of a run's page."""
    total = report.total
    window = f"{report.since or 'the beginning'} to {report.until or 'now'}"
    blocks: list[Block] = [TitledTable("", UNITS, _lines(report))] if report.lines else [Paragraph("Nothing was held.")]
    if report.num_open_attempts:
        count, held = number_of(report.num_open_attempts, "attempt"), _hours(report.open_device_hours)
        text = f"Not included: {count} without a recorded end; those at work hold {held} device-hours so far."
        blocks.append(Paragraph(text))
    return Document(
        title=f"Cost by {report.by}",
        kind="cost",
        subtitle=f"{window}, days in UTC",
        verdict=_verdict(report) if report.lines else None,
        tiles=[
            Fact("training (device-hours)", _hours(total.held_device_hours), _money(total.cost, total.currency)),
            Fact("useful (device-hours)", _hours(total.useful_device_hours), _share(total.useful_device_hours, total)),
            Fact("lost (device-hours)", _hours(total.lost_device_hours), _share(total.lost_device_hours, total)),
            Fact(
                "evaluation (device-hours)",
                _hours(total.evaluation_device_hours),
                _money(total.evaluation_cost, total.currency) if total.evaluation_device_hours else "",
            ),
            Fact("waiting to restart (device-hours)", _hours(total.waiting_device_hours), "not held, so not paid"),
        ],
        sections=[
            Section("", blocks),
            *([Section("Interruptions", [_interruptions(report, address)])] if report.interruptions else []),
        ],
        footer="Training equals 'assay runs goodput'. Money: the prices in settings.yaml, as they are today. The same "
        f"as JSON: {_command(report)}",
    )


def _command(report: CostReport) -> str:
    window = f"{f' --from {report.since}' if report.since else ''}{f' --to {report.until}' if report.until else ''}"
    return f"assay runs goodput --by {report.by}{window} --json"


def _verdict(report: CostReport) -> Verdict:
    found, total = report.interruptions, report.total
    costs = [interruption.cost for interruption in found]
    known = [cost for cost in costs if cost is not None]
    hours = _hours(sum(interruption.device_hours for interruption in found))
    money = _money(sum(known), total.currency) if len(known) == len(costs) else ""
    lost = f"{number_of(len(found), 'interruption')} cost {hours} device-hours{f' ({money})' if money else ''}"
    useful = _share(total.useful_device_hours, total)
    spent = f"{_hours(total.held_device_hours)} device-hours of training{f', {useful} useful' if useful else ''}"
    prices = "" if total.currency and total.cost is not None else f" {WITHOUT_PRICES}"
    return Verdict("ended", "spent", f"{spent}. {lost if found else 'No interruption'}.{prices}")


def _lines(report: CostReport) -> Table:
    def hours_of(field: str) -> Callable[[CostLine], str]:
        return lambda line: _hours(getattr(line, f"{field}_device_hours"))

    return Table.of(
        report.lines,
        (name(report.by), lambda line: one_line(line.name) or WITHOUT[report.by]),
        (number("runs", drop_order=1), lambda line: f"{line.num_runs:,}"),
        (number("device-hours"), hours_of("held")),
        (number("useful"), hours_of("useful")),
        (number("lost"), hours_of("lost")),
        (number("other", drop_order=3), hours_of("other")),
        (number("evaluation", drop_order=2), hours_of("evaluation")),
        (number("waiting", drop_order=4), hours_of("waiting")),
        (number("cost"), lambda line: _money(line.cost, line.currency)),
    ).without_empty_columns()


def _interruptions(report: CostReport, address: Callable[[str], str]) -> Block:
    shown = report.interruptions[:MAX_INTERRUPTIONS]
    more = len(report.interruptions) - len(shown)
    rest = f" {more:,} more are left out." if more else ""
    table = Table.of(
        shown,
        (name("run"), lambda found: Cell(found.run_id, link=address(found.run_id))),
        (number("attempt"), lambda found: str(found.attempt)),
        (number("at (UTC)"), lambda found: utc_text(found.at_s)),
        ("why", lambda found: one_line(found.why)),
        (number("device-hours"), lambda found: _hours(found.device_hours)),
        (number("cost"), lambda found: _money(found.cost, report.total.currency)),
    ).without_empty_columns()
    return TitledTable("", f"Dearest first: what was lost, stalled or spent on the restart.{rest}", table)


def _hours(hours: float) -> str:
    return f"{hours:,.4f}" if hours >= 0.01 else f"{Decimal(f'{hours:.3g}'):f}"


def _share(hours: float, total: CostLine) -> str:
    return percent_text(hours / total.held_device_hours) if total.held_device_hours else ""


def _money(amount: float | None, currency: str) -> str:
    return "" if amount is None or not currency else str(Money(amount, currency))
