"""`assay runs`: the group of commands about recorded runs."""

import click

from assay.cli.parameters import CommandGroup

_MODULES = {
    "list": "assay.cli.runs.list",
    "show": "assay.cli.runs.show",
    "diff": "assay.cli.runs.diff",
    "goodput": "assay.cli.runs.goodput",
    "audit": "assay.cli.runs.audit",
    "replay": "assay.cli.runs.replay",
    "rollout": "assay.cli.runs.rollout",
    "export": "assay.cli.runs.export",
    "sink": "assay.cli.runs.sink",
    "tag": "assay.cli.runs.list",
    "note": "assay.cli.runs.list",
    "delete": "assay.cli.runs.list",
    "settings": "assay.cli.runs.list",
}


@click.group(cls=CommandGroup, modules=_MODULES, default="list")
def runs() -> None:
    """List runs; show, compare, check, replay, export, annotate and delete them.

    Without a command: the list; 'assay runs list --help' has its filters.
    """
