"""`assay train PIPELINE`: train stages that build on each other."""

from pathlib import Path

import click

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.cli.launch_target import SCHEDULER_OPTIONS, LaunchTarget, print_warning
from assay.cli.parameters import (
    current_home,
    is_on_command_line,
    ledger_with_runs,
    print_status,
    print_view,
    writable_ledger,
)

_PIPELINE_OPTIONS = ("recipe", "overrides", "workers", "check", "as_json", "on")


def train_pipeline(
    file: Path, overrides: tuple[str, ...], workers: int, target: LaunchTarget, *, check: bool, as_json: bool
) -> None:
    """Check every stage, then train or continue the pipeline, and print the results."""
    _check_options()
    from assay.cli.progress import ProgressObserver
    from assay.store.ledger.writer import marking
    from assay.workflows.campaign.train import ExecutionSettings, InProcessLauncher
    from assay.workflows.pipeline.folder import declare_pipeline, load_pipeline
    from assay.workflows.pipeline.pipeline import run_pipeline
    from assay.workflows.pipeline.stages import check_stages

    if is_on_command_line(click.get_current_context(), "workers"):
        overrides = (*overrides, f"workers={workers}")
    declared = load_pipeline(file, overrides)
    config = declared.config
    target.check(config.workers)
    target.check_several_runs("a pipeline")
    home = current_home()
    steps = check_stages(declared, home)
    if check:
        for name, num_steps in steps.items():
            origin = f", from {stage.from_}" if (stage := declared.stage(name)).from_ else ""
            click.echo(f"stage {name:<12} {number_of(num_steps, 'step')}{origin}")
        click.echo(
            f"pipeline {config.name}: {number_of(len(steps) * config.seeds, 'run')}, every recipe is valid. "
            "Nothing was started."
        )
        return
    open_pipeline = declare_pipeline(home, declared, SystemClock())
    with writable_ledger(home) as ledger, marking(home, config.name):
        launcher = target.launcher(home, ()) or InProcessLauncher(home, ProgressObserver, SystemClock(), of="pipeline")
        result = run_pipeline(
            open_pipeline,
            ledger,
            # A scheduler queues what does not fit; runs on this machine would compete for its cores.
            execution=ExecutionSettings(
                launcher, config.seeds if target.is_scheduled() else 1, host=target.host(), warn=print_warning
            ),
            on_message=print_status,
        )
    print_pipeline(config.name, as_json=as_json)
    if as_json:
        return
    if result.stopped_by:
        click.echo(f"not finished: {result.stopped_by}.")
    for path in (*result.models, *([result.memo] if result.memo else [])):
        click.echo(path)


def print_pipeline(name: str, *, as_json: bool) -> None:
    """Print a line for each run: status, start and cost."""
    from assay.reporting.documents.runs.run_list import stages_table
    from assay.reporting.terminal.table import print_table
    from assay.reporting.views.pipeline import pipeline_view, stage_runs

    home = current_home()
    declared = home.pipeline(name)
    with ledger_with_runs(home, *stage_runs(declared)) as ledger:
        view = pipeline_view(declared, home, ledger)
    print_view(view, lambda found: print_table(stages_table(found)), as_json=as_json)


def _check_options() -> None:
    context = click.get_current_context()
    for option in context.command.params:
        name = str(option.name)
        if (
            isinstance(option, click.Option)
            and name not in _PIPELINE_OPTIONS
            and not _is_launch_option(name)
            and is_on_command_line(context, name)
        ):
            raise ConfigError(
                f"{option.opts[0]} applies to a single run, and this file is a pipeline. It supports "
                "--check, --workers, --json, and --on with its options."
            )


def _is_launch_option(name: str) -> bool:
    others = ("dry_run", "create_only", "launched")
    return name in others or any(name in options for options in SCHEDULER_OPTIONS.values())
