"""`assay ladder`: changes to a known-good config, one at a time, each judged."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.cli.command import Command
from assay.cli.launch_target import (
    OPTION_SECTIONS,
    LaunchTarget,
    launch_target_options,
    print_warning,
    runs_at_once_option,
)
from assay.cli.parameters import FILE, current_home, json_option, print_status, print_view, writable_ledger

if TYPE_CHECKING:
    from assay.workflows.ladder.folder import OpenLadder


@click.command(cls=Command, sections=OPTION_SECTIONS)
@click.argument("file", type=FILE)
@click.argument("overrides", nargs=-1)
@click.option(
    "--check",
    is_flag=True,
    help="Check the file, the base, and the recipe of every rung and change; print the power of the first campaign; "
    "start nothing.",
)
@runs_at_once_option
@json_option
@launch_target_options
def ladder(
    file: Path, overrides: tuple[str, ...], check: bool, runs_at_once: int, as_json: bool, target: LaunchTarget
) -> None:
    """Try the changes in FILE on a known-good config, one at a time, and write what each was worth.

    The base is trained at its rungs first: smaller sizes, whose losses must follow a scaling law. Then each change is a
    campaign on the newest known-good config. A change is adopted if the campaign scales it and every gate holds,
    rolled back if it harms or breaks a gate, and kept out otherwise. The ladder stops if the base leaves its law. At
    the end, one campaign checks whether the gains of the adopted changes add up.

    All changes share one error: the probability that any of them is adopted without a gain is at most 1 minus
    rule.confidence. A ladder that was killed continues when it is run again; one that is over only prints its page.
    Exit code 0 whatever becomes of the changes, 1 if the ladder stopped.
    """
    target.check_several_runs("a ladder", at_once=runs_at_once)
    from assay.cli.progress import ProgressObserver
    from assay.reporting.documents.ladder import ladder_document
    from assay.reporting.terminal.document import print_document
    from assay.store.ledger.writer import marking
    from assay.workflows.campaign.train import ExecutionSettings, InProcessLauncher
    from assay.workflows.ladder.folder import declare_ladder, find_declared, load_ladder
    from assay.workflows.ladder.ladder import LadderRun
    from assay.workflows.ladder.page import PAGE, write_page

    home, clock = current_home(), SystemClock()
    loaded = load_ladder(home, file, overrides)
    config = loaded.config
    target.check(config.workers)
    if config.gates.step_time is not None and target.is_scheduled():
        raise ConfigError(
            "gates.step_time: the forecast is measured on this machine, and the runs would train on others. Remove the "
            f"gate, or train here: without --on {target.on}."
        )
    opened = find_declared(loaded, clock)
    if opened is None:
        _check(loaded, clock, is_printed=check)
    elif check:
        click.echo(f"ladder {config.name} is declared already, with this file. Nothing was started.")
    if check:
        return
    opened = opened or declare_ladder(loaded, clock)
    with writable_ledger(home) as ledger, marking(home, config.name):
        launcher = target.launcher(home, ()) or InProcessLauncher(home, ProgressObserver, clock, of="ladder")
        execution = ExecutionSettings(launcher, runs_at_once, host=target.host(), warn=print_warning)
        stopped_by = LadderRun(opened, ledger, execution, print_status).run()
        view = write_page(opened, ledger, stopped_by=stopped_by)
    print_view(view, lambda found: print_document(ladder_document(found)), as_json=as_json)
    if not as_json:
        click.echo(opened.folder / PAGE)
    if view.status == "stopped":
        raise SystemExit(1)


def _check(loaded: "OpenLadder", clock: SystemClock, *, is_printed: bool) -> None:
    """Check a ladder that is not declared yet; print its warnings, and what it will do."""
    from assay.reporting.views.statements import statement_text
    from assay.workflows.ladder.check import check_ladder
    from assay.workflows.ladder.folder import find_base_run

    checked, config = check_ladder(loaded, clock), loaded.config
    for warning in checked.warnings:
        click.echo(f"warning: {statement_text(warning)}", err=True)
    if is_printed:
        sizes = [number_of(len(config.rungs), "rung"), number_of(len(config.changes), "change")]
        click.echo(
            f"ladder {config.name}: {', '.join(sizes)}, at most {checked.num_runs:,} runs and those that check the "
            f"sum; the base was run as {find_base_run(loaded)}. Nothing was started.\n"
            "the first change's campaign, whose level all have until one is adopted:"
        )
        for line in checked.power:
            click.echo(statement_text(line))
