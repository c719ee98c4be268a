"""`assay goodput RUN...|PROGRAM`: where the device time went, and what each interruption cost."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from assay.records.goodput import Goodput, Interruption, ProgramGoodput
    from assay.store.home import Home
    from assay.store.ledger.ledger import Ledger


@click.command()
@click.argument("names", metavar="[RUN... | PROGRAM]", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print the record as one JSON object.")
def goodput(names: tuple[str, ...], as_json: bool) -> None:
    """Account for the device time of RUNs (all runs, if none is named), or of all runs of a PROGRAM.

    PROGRAM is a program's YAML file, as for 'assay plan'. Its runs are those in the ledger whose ids its
    activities name (activities.*.runs.ids); there is a line for each activity. Several RUNs get a line each.

    A device is always in exactly one phase, so the phases sum to the time that it was held. Goodput is the
    share of steps that were kept: reading, computing, exchanging gradients. ETTR counts the waiting between
    attempts, too. Attempts that still run are left out, and counted.
    """
    from assay.base.errors import ConfigError
    from assay.store.home import Home

    programs = [name for name in names if _is_program(name)]
    if programs and len(names) > 1:
        raise ConfigError(f"{programs[0]} is a program: name it alone, or name RUNs only.")
    home = Home.from_environment()
    ledger = home.find_ledger()
    if ledger is None:
        raise ConfigError(f"there are no runs in {home.folder}. Is $ASSAY_HOME right?")
    with ledger:
        if programs:
            _account_for_program(Path(programs[0]), home, ledger, as_json=as_json)
        else:
            _account_for_runs(names, ledger, as_json=as_json)


def _is_program(name: str) -> bool:
    return Path(name).suffix in (".yaml", ".yml") or Path(name).is_file()


def _account_for_program(path: Path, home: "Home", ledger: "Ledger", *, as_json: bool) -> None:
    from assay.planning.actuals import goodput_of_program
    from assay.planning.program.file import read_program

    found = goodput_of_program(read_program(path).program, ledger)
    if as_json:
        click.echo(found.to_json())
        return
    if found.together.run_ids:
        _print(found.together, found.by_activity, of="activity")
    else:
        click.echo(_no_runs(path, home, found))


def _account_for_runs(run_ids: tuple[str, ...], ledger: "Ledger", *, as_json: bool) -> None:
    from assay.store.ledger.goodput import goodput_of

    named = {run.run_id: run for run in map(ledger.run, run_ids)}
    found = goodput_of(ledger, list(named.values()) or ledger.runs())
    if as_json:
        click.echo(found.to_json())
    else:
        each = {run_id: goodput_of(ledger, [run]) for run_id, run in named.items()}
        _print(found, each if len(each) > 1 else {}, of="run")


def _no_runs(path: Path, home: "Home", found: "ProgramGoodput") -> str:
    return (
        f"{path}: no run of program '{found.program}' is in the ledger of {home.folder}. Runs belong to it by "
        "their ids: activities.*.runs.ids, by default the activity's name and '-*'."
    )


def _print(found: "Goodput", parts: "Mapping[str, Goodput]", *, of: str) -> None:
    from rich.table import Table

    from assay.cli.screens.terminal import stdout

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
    if found.num_open_attempts:
        screen.print(f"left out: attempts without a recorded end, so far {found.num_open_attempts}")
    phases = Table("phase", "device-hours", "share", box=None)
    for phase, seconds in sorted(found.by_phase.items(), key=lambda item: -item[1]):
        phases.add_row(phase, f"{seconds / 3600:.4f}", f"{seconds / found.held_device_s:.1%}")
    screen.print(phases)
    if parts:
        _print_parts(parts, of=of)
    if found.interruptions:
        _print_interruptions(found)
    screen.print(_advice(found))


def _print_interruptions(found: "Goodput") -> None:
    from rich.table import Table

    from assay.base.clock import utc_text
    from assay.base.units import duration_text
    from assay.cli.screens.terminal import stdout

    table = Table("interruption", "attempt", "cost", "lost", "stalled", "restart", "waited", box=None)
    for each in found.interruptions:
        parts_s = (
            each.lost_device_s,
            each.stalled_device_s,
            each.startup_device_s,
            each.waited_device_s,
        )
        table.add_row(
            f"{utc_text(each.at_s)}  {_what_happened(each)}",
            f"{each.run_id} {each.attempt}",
            _hours(each.cost_device_s()),
            *map(duration_text, parts_s),
        )
    stdout().print(table)


def _print_parts(parts: "Mapping[str, Goodput]", *, of: str) -> None:
    """A line per activity or run; what the interruptions cost includes the waiting that nobody held."""
    from rich.table import Table

    from assay.cli.screens.terminal import stdout

    heads = (of, *(["runs"] if of == "activity" else []), "device-hours", "goodput", "ETTR", "interruptions")
    table = Table(*heads, "their cost", box=None)
    for name, part in parts.items():
        table.add_row(
            name,
            *([str(len(part.run_ids))] if of == "activity" else []),
            f"{part.held_device_s / 3600:.4f}",
            f"{part.goodput():.1%}" if part.held_device_s else "-",
            f"{part.ettr():.1%}" if part.held_device_s else "-",
            str(len(part.interruptions)),
            _hours(part.interruptions_device_s()),
        )
    stdout().print(table)


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


def _what_happened(interruption: "Interruption") -> str:
    """The beginning of it; 'assay show' has the whole."""
    failure = interruption.failure
    return (failure.headline() if failure else interruption.reason)[:60]


def _hours(device_s: float) -> str:
    return f"{device_s / 3600:.4f} device-hours"
