"""`assay goodput RUN...`: where the device time went, and what each interruption cost."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from assay.records.goodput import Goodput


@click.command()
@click.argument("run_ids", metavar="[RUN]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print the record as one JSON object.")
def goodput(run_ids: tuple[str, ...], as_json: bool) -> None:
    """Account for the device time of RUNs (all runs, if none is named).

    A device is always in exactly one phase, so the phases sum to the time that it was held. Goodput is the
    share of steps that were kept: reading, computing, exchanging gradients. ETTR counts the waiting between
    attempts, too.
    """
    from assay.base.errors import ConfigError
    from assay.store.ledger.database import assay_home
    from assay.store.ledger.goodput import goodput_of
    from assay.store.ledger.ledger import find_ledger

    ledger = find_ledger()
    if ledger is None:
        raise ConfigError(f"there are no runs in {assay_home()}. Is $ASSAY_HOME right?")
    with ledger:
        runs = [ledger.run(run_id) for run_id in run_ids] or ledger.runs()
        found = goodput_of(ledger, runs)
    if as_json:
        click.echo(found.to_json())
    else:
        _print(found)


def _print(found: "Goodput") -> None:
    from rich.table import Table

    from assay.base.clock import utc_text
    from assay.base.units import duration_text
    from assay.cli.screen import stdout

    screen = stdout()
    if not found.held_device_s:
        screen.print("no attempt has ended yet: nothing was held.")
        return
    count = len(found.run_ids)
    screen.print(
        f"goodput {found.goodput():.1%}, ETTR {found.ettr():.1%} of {_hours(found.held_device_s)} held, "
        f"{count} run{'s' if count > 1 else ''}",
        style="bold",
    )
    phases = Table("phase", "device-hours", "share", box=None)
    for phase, seconds in sorted(found.by_phase.items(), key=lambda item: -item[1]):
        phases.add_row(phase, f"{seconds / 3600:.4f}", f"{seconds / found.held_device_s:.1%}")
    screen.print(phases)
    if found.interruptions:
        table = Table("interruption", "attempt", "cost", "lost", "stalled", "restart", "waited", box=None)
        for each in found.interruptions:
            table.add_row(
                f"{utc_text(each.at_s)}  {_short(each.reason)}",
                f"{each.run_id} {each.attempt}",
                _hours(each.cost_device_s()),
                *(
                    duration_text(seconds)
                    for seconds in (
                        each.lost_device_s,
                        each.stalled_device_s,
                        each.startup_device_s,
                        each.waited_device_s,
                    )
                ),
            )
        screen.print(table)
    screen.print(_advice(found))


def _advice(found: "Goodput") -> str:
    from assay.base.units import duration_text

    if found.failure_s is None:
        return "no interruption on record: nothing to weigh the cost of commits against."
    if found.optimal_commit_s is None or found.commit_s is None:
        return "no commit on record in an attempt that has ended: nobody knows yet what one costs."
    steps = f", about {max(1, round(found.optimal_commit_s / found.step_s))} steps" if found.step_s else ""
    return (
        f"a commit holds a rank up for {1000 * found.commit_s:.0f} ms, an interruption comes every "
        f"{duration_text(found.failure_s)}: best is a commit every {duration_text(found.optimal_commit_s)}"
        f"{steps} (Daly 2006). 'trainer.commit_every: auto' does that."
    )


def _short(reason: str) -> str:
    """The first clause; 'assay show' has the whole."""
    return reason.split(";")[0].split(": no sign")[0][:60]


def _hours(device_s: float) -> str:
    return f"{device_s / 3600:.4f} device-hours"
