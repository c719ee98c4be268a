"""`assay check`: the group of commands."""

import click

from assay.cli.command import CommandGroup

_MODULES = {
    "resume": ("assay.cli.check.resume", "Kill and resume a training script; compare with an undisturbed run."),
    "api": ("assay.cli.check.api", "Test a server of the Tinker API or of OpenAI's fine-tuning API."),
}


@click.group(cls=CommandGroup, modules=_MODULES)
def check() -> None:
    """Test software that assay did not write: how a training script resumes, how a training API answers."""
