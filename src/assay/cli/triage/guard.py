"""`assay triage guard`: keep runs away from what a diagnosis found."""

import getpass
from pathlib import Path

import click

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.cli.parameters import InputFile, current_home, json_option


@click.command()
@click.argument("diagnosis", type=InputFile("Create one with 'assay triage failures --json > {path}'."), required=False)
@click.option("--cause", default=1, metavar="N", help="Number of the cause to accept.")
@click.option("--refuse", is_flag=True, help="Reject matching runs instead of warning about them.")
@click.option("--name", help="Name of the guard; by default its factors.")
@click.option("--lift", metavar="NAME", help="Remove this guard.")
@click.option("--exclude", is_flag=True, help="Print the hosts for Slurm to exclude, e.g. n03,n07.")
@json_option
def guard(
    diagnosis: Path | None,
    cause: int,
    refuse: bool,
    name: str | None,
    lift: str | None,
    exclude: bool,
    as_json: bool,
) -> None:
    """Warn about runs that match the cause of a DIAGNOSIS, or reject them; without one, list the guards.

    DIAGNOSIS is the output of 'assay triage failures --json'. 'assay train' and campaigns apply guards and
    exclude their hosts in Slurm. A guard expires when later attempts show that the cause was fixed ('triage
    fixed').
    """
    if sum((diagnosis is not None, lift is not None, exclude)) > 1:
        raise ConfigError("give only one of: a DIAGNOSIS, --lift NAME, --exclude.")
    if diagnosis is None and (refuse or name is not None):
        raise ConfigError("--refuse and --name need a DIAGNOSIS: give its file.")
    from assay.launchers.guards import lift_guard

    home = current_home()
    if diagnosis is not None:
        _accept(diagnosis, cause, is_refusing=refuse, name=name)
    elif lift is not None:
        click.echo(f"guard '{lift_guard(home.folder, lift).name}' is removed")
        return
    _print_guards(exclude=exclude, as_json=as_json)


def _accept(file: Path, number: int, *, is_refusing: bool, name: str | None) -> None:
    from assay.launchers.guards import save_guard
    from assay.records.failure_causes import FailureDiagnosis
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
    save_guard(current_home().folder, accepted)


def _print_guards(*, exclude: bool, as_json: bool) -> None:
    from assay.launchers.guards import guard_statuses
    from assay.reporting.views.view import json_list
    from assay.triage.guard import excluded_hosts

    found = guard_statuses(current_home())
    if exclude:
        active = [item.guard for item in found if not item.has_lapsed]
        click.echo(",".join(excluded_hosts(active, {})))
    elif as_json:
        click.echo(json_list(found))
    else:
        from assay.reporting.documents.triage import triage_document
        from assay.reporting.terminal.document import print_document

        print_document(triage_document(found))
