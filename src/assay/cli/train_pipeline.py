"""`assay train PIPELINE`: stages that build on one another, trained to the last one's model."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.cli.given import asked_ledger, given_home, is_given, opened_ledger

if TYPE_CHECKING:
    from assay.cli.train_on import PlaceOptions

_TAKEN = ("recipe", "overrides", "workers", "check", "as_json", "on")


def train_pipeline(
    file: Path, overrides: tuple[str, ...], workers: int, place: "PlaceOptions", *, check: bool, as_json: bool
) -> None:
    """Check every stage; then train, or go on, and say what came of it."""
    _refuse_options()
    from assay.cli.progress import RunProgress
    from assay.store.ledger.writer import marking
    from assay.workflows.campaign.train import InThisProcess, Workplace
    from assay.workflows.pipeline.folder import declare_pipeline, given_pipeline
    from assay.workflows.pipeline.pipeline import run_pipeline
    from assay.workflows.pipeline.stages import check_stages

    if is_given(click.get_current_context(), "workers"):
        overrides = (*overrides, f"workers={workers}")
    given = given_pipeline(file, overrides)
    config = given.config
    place.check(config.workers)
    if place.on == "allocation" or place.dry_run:
        raise click.UsageError("a pipeline runs '--on here', '--on background' or '--on slurm'.")
    home = given_home()
    steps = check_stages(given, home)
    if check:
        for name, num_steps in steps.items():
            begun = f", from {stage.from_}" if (stage := given.stage(name)).from_ else ""
            click.echo(f"stage {name:<12} {number_of(num_steps, 'step')}{begun}")
        click.echo(
            f"pipeline {config.name}: {number_of(len(steps) * config.seeds, 'run')}, every recipe is valid. "
            "Nothing was started."
        )
        return
    opened = declare_pipeline(home, given, SystemClock())
    with opened_ledger(home) as ledger, marking(home, config.name):
        from assay.cli.train_on import warned

        launcher = place.launcher(home, ()) or InThisProcess(home, RunProgress, SystemClock(), of="pipeline")
        result = run_pipeline(
            opened,
            ledger,
            # A cluster queues; this machine has its cores once.
            place=Workplace(
                launcher, config.seeds if place.on == "slurm" else 1, host=place.host(), warn=warned
            ),
            say=lambda text: click.secho(f"· {text}", fg="cyan", err=True),
        )
    print_pipeline(config.name, as_json=as_json)
    if as_json:
        return
    if result.stopped_by:
        click.echo(f"not finished: {result.stopped_by}.")
    for path in (*result.models, *([result.memo] if result.memo else [])):
        click.echo(path)


def print_pipeline(name: str, *, as_json: bool) -> None:
    """A line for each run: how it stands, what it began with, what it cost."""
    from assay.reporting.terminal.pipeline import print_stages
    from assay.reporting.views.pipeline import pipeline_view, stage_runs

    home = given_home()
    declared = home.pipeline(name)
    with asked_ledger(home, *stage_runs(declared)) as ledger:
        view = pipeline_view(declared, home, ledger)
    if as_json:
        click.echo(view.to_json())
    else:
        print_stages(view)


def _refuse_options() -> None:
    """Raise `ConfigError` for an option of a single run."""
    context = click.get_current_context()
    for option in context.command.params:
        name = str(option.name)
        if (
            isinstance(option, click.Option)
            and name not in _TAKEN
            and not _is_of_place(name)
            and is_given(context, name)
        ):
            raise ConfigError(
                f"{option.opts[0]} is of a single run, and this file is a pipeline's. Of these it takes "
                "--check, --workers, --json and --on with what belongs to that."
            )


def _is_of_place(name: str) -> bool:
    from assay.cli.train_on import OF_SLURM

    return name in (*OF_SLURM, "dry_run", "launched")
