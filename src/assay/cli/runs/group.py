"""`assay runs`: the group of commands about recorded runs."""

import click

from assay.cli.command import CommandGroup

_MODULES = {
    "list": ("assay.cli.runs.list", "List the runs, the newest first (default); it has filters."),
    "groups": ("assay.cli.runs.list", "Compare recipes over the seeds of their runs."),
    "show": ("assay.cli.runs.show", "Show what a run did, cost and measured, or a pipeline's stages."),
    "diff": ("assay.cli.runs.show", "Show what differs between two runs."),
    "goodput": ("assay.cli.runs.goodput", "Account for device time and interruptions."),
    "audit": ("assay.cli.runs.audit", "Check that training used each row exactly once."),
    "replay": ("assay.cli.runs.replay", "Replay a training step and compare it bit for bit."),
    "rollouts": ("assay.cli.runs.rollout", "Read the completions of a step, beside those of another step."),
    "rollout": ("assay.cli.runs.rollout", "Replay one rollout of a GRPO run and compare it bit for bit."),
    "export": ("assay.cli.runs.export", "Write the model of a run to a folder that other tools load."),
    "sink": ("assay.cli.runs.export", "Send a run's metrics to TensorBoard, MLflow, W&B or trackio."),
    "import": ("assay.cli.runs.export", "Import runs of MLflow, TensorBoard, W&B, trackio or Neptune."),
    "tag": ("assay.cli.runs.list", "Add tags to a run, or remove them."),
    "note": ("assay.cli.runs.list", "Add a note to a run."),
    "delete": ("assay.cli.runs.list", "Delete runs and their commits."),
    "keys": ("assay.cli.runs.show", "Print every key of the JSON of commands, or of settings.yaml."),
}


@click.group(cls=CommandGroup, modules=_MODULES, default="list")
def runs() -> None:
    """List, show, compare, check, export, import, annotate and delete runs."""
