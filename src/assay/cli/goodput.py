"""`assay goodput RUN...|PROGRAM`: where the device time went, and what each interruption cost."""

from pathlib import Path

import click

from assay.base.errors import ConfigError
from assay.cli.parameters import FILE_OR_RUN, current_home, readable_ledger, warn_if_stale


@click.command()
@click.argument("names", metavar="[RUN... | PROGRAM]", nargs=-1, type=FILE_OR_RUN)
@click.option("--json", "as_json", is_flag=True, help="Print the record as one JSON object.")
@click.option("--drills", is_flag=True, help="Where no RUN is named, also those that 'assay drill' made.")
def goodput(names: tuple[str, ...], as_json: bool, drills: bool) -> None:
    """Account for the device time of RUNs (all runs, if none is named), or of all runs of a PROGRAM.

    PROGRAM is a program's YAML file, as for 'assay plan'. Its runs are those in the ledger whose ids its
    activities name (activities.*.runs.ids); there is a line for each activity. Several RUNs get a line each.

    A device is always in exactly one phase, so the phases sum to the time that it was held. Goodput is the
    share of steps that were kept: reading, sampling and grading, computing, exchanging. ETTR counts the waiting
    between attempts, too. Attempts that still run are left out, and counted.
    """
    from assay.reporting.terminal.goodput import print_goodput
    from assay.store.ledger.goodput import goodput_of

    programs = [name for name in names if Path(name).suffix in (".yaml", ".yml") or Path(name).is_file()]
    if programs and len(names) > 1:
        raise ConfigError(f"{programs[0]} is a program: name it alone, or name RUNs only.")
    home = current_home()
    ledger = readable_ledger(home)
    if ledger is None:
        raise ConfigError(f"there are no runs in {home.folder}. Is $ASSAY_HOME right?")
    with ledger:
        if programs:
            from assay.planning.actuals import goodput_of_program
            from assay.planning.program.file import read_program

            program = read_program(Path(programs[0])).program
            warn_if_stale(ledger)
            of_program = goodput_of_program(program, ledger, home.settings())
            if as_json:
                click.echo(of_program.to_json())
            elif of_program.together.run_ids:
                print_goodput(of_program.together, of_program.by_activity, of="activity")
            else:
                click.echo(
                    f"{programs[0]}: no run of program '{of_program.program}' is in the ledger of "
                    f"{home.folder}. Runs belong to it by their ids: activities.*.runs.ids, by default the "
                    "activity's name and '-*'."
                )
            return
        named = {run.run_id: run for run in map(ledger.run, names)}
        warn_if_stale(ledger, named or None)
        every = [run for run in ledger.runs() if drills or not run.is_drill]
        settings = home.settings()
        found = goodput_of(ledger, list(named.values()) or every, settings)
        if as_json:
            click.echo(found.to_json())
        else:
            each = {run_id: goodput_of(ledger, [run], settings) for run_id, run in named.items()}
            print_goodput(found, each if len(each) > 1 else {}, of="run")
