"""`assay runs goodput RUN...|PROGRAM`: account for device time, and for the cost of each interruption."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.cli.parameters import FILE_OR_RUN, current_home, json_option, readable_ledger, warn_if_stale

if TYPE_CHECKING:
    from assay.reporting.views.cost import Grouping
    from assay.store.home import Home
    from assay.store.ledger.ledger import Ledger


@click.command()
@click.argument("names", metavar="[RUN... | PROGRAM]", nargs=-1, type=FILE_OR_RUN)
@json_option
@click.option("--drills", is_flag=True, help="Include the runs of 'assay train drill' if no RUN is named.")
@click.option(
    "--by",
    type=click.Choice(["project", "program", "person", "day"]),
    help="Sum device-hours and money of all runs by this instead.",
)
@click.option("--from", "since", metavar="DAY", help="First UTC day of --by, such as 2026-11-28.")
@click.option("--to", "until", metavar="DAY", help="Last UTC day of --by, included.")
def goodput(
    names: tuple[str, ...], as_json: bool, drills: bool, by: "Grouping | None", since: str | None, until: str | None
) -> None:
    """Account for the device time of RUNs (by default all runs), or of all runs of a PROGRAM.

    PROGRAM is a program's YAML file, as for 'assay plan'. Its runs are those in the ledger whose ids match its
    activities (activities.*.runs.ids); each activity gets a line. Several RUNs get a line each.

    A device is always in exactly one phase, so the phases sum to the time that it was held. Goodput is the
    share of time spent on steps that were kept: reading, sampling and grading, computing, exchanging. ETTR also
    counts the waiting time between attempts. Running attempts are excluded, and counted.

    With --by, device-hours and money of all runs are summed by project, program, person or day instead, as on the
    dashboard's page Cost.
    """
    from assay.reporting.documents.goodput import goodput_document
    from assay.reporting.terminal.document import print_document
    from assay.store.ledger.goodput import goodput_of

    programs = [name for name in names if Path(name).suffix in (".yaml", ".yml") or Path(name).is_file()]
    if programs and len(names) > 1:
        raise ConfigError(f"{programs[0]} is a program: name it alone, or name only RUNs.")
    home = current_home()
    ledger = readable_ledger(home)
    if ledger is None:
        raise ConfigError(f"there are no runs in {home.folder}. Check $ASSAY_HOME.")
    with ledger:
        if by is not None or since or until:
            if by is None or names or drills:
                raise click.UsageError("--by applies to all runs except drills; --from and --to apply to --by.")
            warn_if_stale(ledger)
            _print_costs(home, ledger, by, since, until, as_json=as_json)
            return
        if programs:
            from assay.planning.actuals import goodput_of_program
            from assay.planning.program.file import read_program

            program = read_program(Path(programs[0])).program
            warn_if_stale(ledger)
            by_program = goodput_of_program(program, ledger, home.settings())
            if as_json:
                click.echo(by_program.to_json())
            elif by_program.together.run_ids:
                print_document(goodput_document(by_program.together, by_program.by_activity, of="activity"))
            else:
                click.echo(
                    f"{programs[0]}: no run of program '{by_program.program}' is in the ledger of "
                    f"{home.folder}. Runs are matched by their ids: activities.*.runs.ids, by default the "
                    "activity's name and '-*'."
                )
            return
        named = {run.run_id: run for run in map(ledger.run, names)}
        warn_if_stale(ledger, named or None)
        all_runs = [run for run in ledger.runs() if drills or not run.is_drill]
        settings = home.settings()
        report = goodput_of(ledger, list(named.values()) or all_runs, settings)
        if as_json:
            click.echo(report.to_json())
        else:
            by_run = {run_id: goodput_of(ledger, [run], settings) for run_id, run in named.items()}
            print_document(goodput_document(report, by_run if len(by_run) > 1 else {}, of="run"))


def _print_costs(
    home: "Home", ledger: "Ledger", by: "Grouping", since: str | None, until: str | None, *, as_json: bool
) -> None:
    from assay.reporting.documents.cost import cost_document
    from assay.reporting.terminal.document import print_document
    from assay.reporting.views.cost import cost_report, owners_in, utc_day
    from assay.serving.admin.spend import ChargedResources
    from assay.serving.batches.batches import BatchRepository
    from assay.serving.evals.runs import EvalRunRepository
    from assay.serving.jobs import JobRepository
    from assay.serving.sessions.sessions import SessionRepository
    from assay.store.objects import open_store

    first, last = utc_day("--from", since), utc_day("--to", until)
    store, clock = open_store(str(home.api)), SystemClock()
    tasks = EvalRunRepository(store, clock), BatchRepository(store, clock)
    charged = ChargedResources(JobRepository(store, clock), *tasks, SessionRepository(store, clock))
    owners = owners_in(home, ledger, charged, by=by)
    report = cost_report(ledger, home.settings(), owners, by=by, since=first, until=last)
    if as_json:
        click.echo(report.to_json())
    else:
        print_document(cost_document(report))
