"""`assay triage guard`: keep runs from what a diagnosis blamed."""

import getpass
from pathlib import Path

import click

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.cli.given import InputFile, given_home
from assay.cli.triage.given import JSON


@click.command()
@click.argument(
    "diagnosis",
    type=InputFile("'assay triage failures --json > {path}' writes one."),
    required=False,
)
@click.option("--cause", default=1, show_default=True, metavar="N", help="Which of its causes is accepted.")
@click.option("--refuse", is_flag=True, help="Runs that land on it are not begun; else they are warned of.")
@click.option("--name", help="What to call the guard; by default its factors.")
@click.option("--lift", metavar="NAME", help="Take a guard away.")
@click.option("--exclude", is_flag=True, help="Print the hosts that Slurm is to leave out: n03,n07.")
@JSON
def guard(
    diagnosis: Path | None,
    cause: int,
    refuse: bool,
    name: str | None,
    lift: str | None,
    exclude: bool,
    as_json: bool,
) -> None:
    """Warn of runs that land on what a DIAGNOSIS blamed, or refuse them; without one, list the guards.

    DIAGNOSIS is what 'assay triage failures --json' printed. 'assay train' and campaigns heed guards, and
    tell Slurm to leave their hosts out; a guard lapses when attempts on it say that it was mended ('triage
    fixed')."""
    if sum((diagnosis is not None, lift is not None, exclude)) > 1:
        raise ConfigError("give one of these: a DIAGNOSIS to accept, --lift NAME, or --exclude.")
    if diagnosis is None and (refuse or name is not None):
        raise ConfigError("--refuse and --name are of a DIAGNOSIS that is accepted: give its file.")
    from assay.store.triage.guards import lift_guard

    home = given_home()
    if diagnosis is not None:
        _accept(diagnosis, cause, is_refusing=refuse, name=name)
    elif lift is not None:
        click.echo(f"guard '{lift_guard(home.folder, lift).name}' is lifted")
        return
    _print_guards(exclude=exclude, as_json=as_json)


def _accept(file: Path, number: int, *, is_refusing: bool, name: str | None) -> None:
    from assay.records.failure_causes import FailureDiagnosis
    from assay.store.triage.guards import save_guard
    from assay.triage.guard import guard_of

    found = FailureDiagnosis.from_json(file.read_bytes(), source=file)
    accepted = guard_of(
        found,
        number,
        name=name,
        is_refusing=is_refusing,
        accepted_s=SystemClock().now_s(),
        accepted_by=getpass.getuser(),
    )
    save_guard(given_home().folder, accepted)


def _print_guards(*, exclude: bool, as_json: bool) -> None:
    from assay.launchers.guards import guard_standings
    from assay.reporting.terminal.guards import print_guards
    from assay.reporting.views.view import json_list
    from assay.triage.guard import hosts_to_leave_out

    found = guard_standings(given_home())
    if exclude:
        standing = [each.guard for each in found if not each.has_lapsed]
        click.echo(",".join(hosts_to_leave_out(standing, {})))
    elif as_json:
        click.echo(json_list(found))
    else:
        print_guards(found)
