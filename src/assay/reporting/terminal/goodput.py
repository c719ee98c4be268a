"""Goodput on a terminal."""

from collections.abc import Mapping

from rich.table import Column

from assay.base.clock import utc_text
from assay.base.units import duration_text, number_of, tenths_text
from assay.records.goodput import Goodput, Interruption
from assay.reporting.terminal.terminal import name, number, print_list, stdout, table_of
from assay.store.settings import Money


def print_goodput(goodput: Goodput, parts: Mapping[str, Goodput], *, of: str) -> None:
    """Print the phases, a row for each part (`of` names what a part is), and each interruption's cost."""
    screen = stdout()
    if not goodput.held_device_s:
        screen.print("no attempt has ended yet: nothing was held.")
        if goodput.evaluation_device_s:
            screen.print(f"evaluation of commits held {_hours(goodput.evaluation_device_s)}")
        return
    count = len(goodput.run_ids)
    screen.print(
        f"goodput {tenths_text(goodput.goodput())}, ETTR {tenths_text(goodput.ettr())} of "
        f"{_hours(goodput.held_device_s)} held, {count} run{'s' if count > 1 else ''}"
        + (f", {Money(goodput.cost, goodput.currency)}" if goodput.cost is not None else ""),
        style="bold",
    )
    if goodput.num_open_attempts:
        screen.print(f"left out: attempts without a recorded end, so far {goodput.num_open_attempts}")
    if goodput.evaluation_device_s:
        screen.print(f"evaluation of commits held {_hours(goodput.evaluation_device_s)}, apart from training")
    phases = table_of(
        sorted(goodput.by_phase.items(), key=lambda part: -part[1]),
        ("phase", lambda part: part[0]),
        (number("device-hours"), lambda part: f"{part[1] / 3600:.4f}"),
        (number("share"), lambda part: tenths_text(part[1] / goodput.held_device_s)),
    )
    screen.print(phases)
    if parts:
        print_list(
            list(parts.items()),
            (name(of), lambda part: part[0]),
            *([(number("runs"), lambda part: str(len(part[1].run_ids)))] if of == "activity" else []),
            (number("device-hours"), lambda part: f"{part[1].held_device_s / 3600:.4f}"),
            *([(number("cost"), _cost)] if goodput.cost is not None else []),
            (number("goodput"), lambda part: tenths_text(part[1].goodput()) if part[1].held_device_s else "-"),
            (number("ETTR"), lambda part: tenths_text(part[1].ettr()) if part[1].held_device_s else "-"),
            (number("interruptions"), lambda part: str(len(part[1].interruptions))),
            (number("their cost"), lambda part: _hours(part[1].interruptions_device_s())),
            dispensable=("ETTR", "cost", "their cost", "runs"),
        )
    if goodput.interruptions:
        print_list(
            goodput.interruptions,
            (
                Column("interruption"),
                lambda interruption: f"{utc_text(interruption.at_s)}  {_what_happened(interruption)}",
            ),
            (name("attempt"), lambda interruption: f"{interruption.run_id} {interruption.attempt}"),
            (number("cost"), lambda interruption: _hours(interruption.cost_device_s())),
            (number("lost"), lambda interruption: duration_text(interruption.lost_device_s)),
            (number("stalled"), lambda interruption: duration_text(interruption.stalled_device_s)),
            (number("restart"), lambda interruption: duration_text(interruption.startup_device_s)),
            (number("waited"), lambda interruption: duration_text(interruption.waited_device_s)),
            dispensable=("waited", "restart", "stalled", "lost"),
        )
    screen.print(_advice(goodput))


def _cost(part: tuple[str, Goodput]) -> str:
    cost = part[1].cost
    return "" if cost is None else str(Money(cost, part[1].currency))


def _advice(goodput: Goodput) -> str:
    if goodput.failure_s is None:
        return "no interruption on record: nothing to weigh the cost of commits against."
    if goodput.optimal_commit_s is None or goodput.commit_s is None:
        return "no commit on record in an attempt that has ended: nobody knows yet what one costs."
    steps = (
        f", about {number_of(max(1, round(goodput.optimal_commit_s / goodput.step_s)), 'step')}"
        if goodput.step_s
        else ""
    )
    return (
        f"a commit holds a rank up for {1000 * goodput.commit_s:.0f} ms, an interruption comes every "
        f"{duration_text(goodput.failure_s)}: best is a commit every {duration_text(goodput.optimal_commit_s)}"
        f"{steps} (Daly 2006). 'trainer.commit_every: auto' does that."
    )


def _what_happened(interruption: Interruption) -> str:
    """Return the start of the failure's text."""
    failure = interruption.failure
    text = failure.headline() if failure else interruption.reason
    return text if len(text) <= 60 else f"{text[:59].rsplit(' ', 1)[0]} …"


def _hours(device_s: float) -> str:
    return f"{device_s / 3600:.4f} device-hours"
