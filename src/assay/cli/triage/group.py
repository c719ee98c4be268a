"""The group of `assay triage`."""

import click

from assay.cli.given import CommandGroup
from assay.cli.triage.ci import ci
from assay.cli.triage.data import data
from assay.cli.triage.failures import failures, fixed
from assay.cli.triage.guard import guard
from assay.cli.triage.slow import skew, slow, startup
from assay.cli.triage.symptoms import hang, symptoms


@click.group(cls=CommandGroup)
def triage() -> None:
    """Say why attempts fail, over all runs or any table, what their logs name, what became slower or hangs,
    which data changed, where startup and CI lose time, whether a fix worked; keep runs from what is broken."""


for command in (failures, symptoms, fixed, guard, slow, skew, hang, startup, data, ci):
    triage.add_command(command)
