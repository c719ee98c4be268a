"""`assay decide`: train a baseline and its candidates over several seeds, and decide by declared gates."""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.clock import SystemClock
from assay.base.units import number_of
from assay.cli.command import CommandGroup
from assay.cli.launch_target import (
    OPTION_SECTIONS,
    LaunchTarget,
    launch_target_options,
    print_warning,
    runs_at_once_option,
)
from assay.cli.parameters import (
    CAMPAIGN,
    FILE,
    current_home,
    json_option,
    measure_option,
    print_status,
    readable_ledger,
    writable_ledger,
)

if TYPE_CHECKING:
    from assay.decision.config import CampaignConfig
    from assay.reporting.documents.memo import Memo
    from assay.store.home import Home

KEYS_HEAD = (
    "# Campaigns, key by key",
    "",
    "A campaign is a YAML file (see decide.md); `a.b=value` on the command line overrides it; unknown keys are",
    "refused. This page is what `assay decide keys` prints.",
)


_MODULES = {
    "run": ("assay.cli.decide.group", "Train a campaign's baseline and candidates; decide by its gates."),
    "again": ("assay.cli.decide.group", "Decide a campaign again from its results; write its memo."),
    "show": ("assay.cli.decide.group", "Show the decisions of a campaign so far."),
    "list": ("assay.cli.decide.group", "List the campaigns with their newest decisions."),
    "compare": ("assay.cli.decide.compare", "Compare runs with a baseline run."),
    "power": ("assay.cli.decide.evidence", "Compute which gain a number of seeds detects."),
    "proxy": ("assay.cli.decide.evidence", "Find the smallest scale that orders recipes as a large one."),
    "keys": ("assay.cli.decide.group", "Print every key of a campaign file."),
}


@click.group(cls=CommandGroup, modules=_MODULES)
def decide() -> None:
    """Train a baseline and its candidates over several seeds, and decide by declared gates.

    A campaign is a YAML file with the known-good recipe, a patch per candidate, the seeds and looks, the
    benchmarks and the decision rule. See docs/decide.md, and recipes/campaigns for an example.
    """


@decide.command("run", sections=OPTION_SECTIONS)
@click.argument("file", type=FILE)
@click.argument("overrides", nargs=-1)
@click.option(
    "--check",
    is_flag=True,
    help="Check the file, its recipe and its data, print the expected cost and the power of each look and "
    "guardrail, and start nothing.",
)
@runs_at_once_option
@measure_option(3.0, "With --check: how long to measure real steps; 0: do not measure.")
@json_option
@launch_target_options
def run(
    file: Path,
    overrides: tuple[str, ...],
    check: bool,
    runs_at_once: int,
    measure_s: float,
    as_json: bool,
    target: LaunchTarget,
) -> None:
    """Run the campaign that FILE declares, or continue it, and write its memo.

    Run ids are derived from (campaign, arm, seed), so a campaign that was killed continues where it stopped.
    After the first run, changes to the declaration are rejected; only budget_device_hours, workers, owner,
    dissent and least_effect_because may change. OVERRIDES work as in 'assay train', e.g. budget_device_hours=2.
    The exit code is 0 whatever the decision is.

    Runs that train in the background or in Slurm do not depend on this command: if it is killed they continue,
    and when it is started again it waits for them, on whatever machine they were started.
    """
    target.check_several_runs("a campaign", at_once=runs_at_once)
    from assay.cli.progress import ProgressObserver
    from assay.reporting.views.statements import device_time_text, statement_text
    from assay.reporting.views.view import json_list
    from assay.store.ledger.writer import marking
    from assay.workflows.campaign.campaign import run_campaign
    from assay.workflows.campaign.check import check_campaign, expected_cost
    from assay.workflows.campaign.folder import declare, load_campaign
    from assay.workflows.campaign.train import ExecutionSettings, InProcessLauncher

    home = current_home()
    loaded = load_campaign(home, file, overrides)
    config = loaded.config
    target.check(config.workers)
    checked = check_campaign(loaded, SystemClock())
    for warning in checked.warnings:
        click.echo(f"warning: {statement_text(warning)}", err=True)
    if check:
        click.echo(
            f"campaign {config.name}: at most {number_of(checked.num_runs, 'run')}{_on_record_text(config, home)}, "
            f"{_looks_text(config.all_looks)}, "
            f"budget {device_time_text(3600 * config.budget_device_hours)}. Nothing was started.",
            err=as_json,
        )
        lines = list(checked.power)
        if measure_s and config.recipe is not None and not target.is_scheduled():
            click.echo(f"measuring {measure_s:g} s of real steps, in a folder that is removed ...", err=True)
            lines.insert(0, expected_cost(loaded, seconds=measure_s))
        click.echo(json_list(lines) if as_json else "\n".join(map(statement_text, lines)))
        return
    open_campaign = declare(loaded, SystemClock())
    with writable_ledger(home) as ledger, marking(home, config.name):
        launcher = target.launcher(home, ()) or InProcessLauncher(home, ProgressObserver, SystemClock())
        written = run_campaign(
            open_campaign,
            ledger,
            execution=ExecutionSettings(launcher, runs_at_once, host=target.host(), warn=print_warning),
            on_message=print_status,
        )
    _print_memo(written.memo, written.page, as_json=as_json)


def _on_record_text(config: "CampaignConfig", home: "Home") -> str:
    """Return how many of the runs exist already, as text; empty if there are none."""
    ids = [config.run_id(arm, seed) for arm in config.arm_names for seed in config.seed_numbers]
    known = sum(home.has_run(run_id) for run_id in ids)
    return f" ({known:,} on record already: what is finished is not trained again)" if known else ""


def _looks_text(looks: Sequence[int]) -> str:
    if len(looks) == 1:
        return f"one look, at {number_of(looks[0], 'seed')}"
    return f"looks at {', '.join(map(str, looks[:-1]))} and {looks[-1]} seeds"


@decide.command()
@click.argument("campaign", type=CAMPAIGN)
@click.option(
    "--now",
    is_flag=True,
    help="Take an undeclared look at the finished seeds. It is recorded, spends error reserved for such looks, "
    "and can find harm or a clear gain, but not futility.",
)
@json_option
def again(campaign: str, now: bool, as_json: bool) -> None:
    """Decide CAMPAIGN again from its per-item results, and write its memo.

    If a recorded decision no longer follows from the results, the command fails with exit code 1. It trains
    nothing; 'assay decide run' does.
    """
    from assay.store.ledger.writer import marking
    from assay.workflows.campaign.campaign import decide_again, look_now
    from assay.workflows.campaign.evidence import Scoring
    from assay.workflows.campaign.folder import find_campaign
    from assay.workflows.campaign.memo import write_memo

    home = current_home()
    open_campaign = find_campaign(home, campaign)
    with writable_ledger(home) as ledger, marking(home, campaign):
        scoring = Scoring(ledger, SystemClock())
        decide_again(open_campaign, scoring)
        if now:
            look_now(open_campaign, scoring)
    written = write_memo(open_campaign)
    _print_memo(written.memo, written.page, as_json=as_json)


@decide.command("keys")
@click.option("--ladder", "of_ladder", is_flag=True, help="Print the keys of a ladder file instead.")
def keys(of_ladder: bool) -> None:
    """Print every key of a campaign file with its default and meaning."""
    if of_ladder:
        from assay.workflows.ladder.config import ladder_reference

        click.echo(ladder_reference(), nl=False)
        return
    from assay.base.key_reference import key_reference
    from assay.decision.config import CampaignConfig

    click.echo(key_reference(KEYS_HEAD, CampaignConfig), nl=False)


@decide.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the campaigns and their newest decisions, the newest campaign first.

    The list is read from the ledger, so it includes the campaigns of everyone who shares it. 'assay runs
    --rebuild' restores it from the folders.
    """
    from assay.reporting.documents.campaign_list import campaigns_table
    from assay.reporting.terminal.table import print_table
    from assay.reporting.views.evidence import campaign_lines
    from assay.reporting.views.view import json_list

    home = current_home()
    with readable_ledger(home) or nullcontext() as ledger:
        lines = campaign_lines(ledger) if ledger else []
    if as_json:
        click.echo(json_list(lines))
    elif not lines:
        click.echo(f"No campaigns in {home.folder} yet. Start one with 'assay decide run FILE'.")
    else:
        print_table(campaigns_table(lines))


@decide.command("show")
@click.argument("name", type=CAMPAIGN)
@json_option
def show(name: str, as_json: bool) -> None:
    """Show the decisions of campaign NAME so far, without evaluating its gates again.

    Exit code 1 if the file of a decision differs from the ledger's record; 'assay decide again NAME' evaluates the
    gates again.
    """
    from assay.workflows.campaign.folder import changed_since, find_campaign
    from assay.workflows.campaign.memo import MEMO_PAGE, read_memo

    home = current_home()
    open_campaign = find_campaign(home, name)
    memo, page = read_memo(open_campaign), open_campaign.folder / MEMO_PAGE
    _print_memo(memo, page if page.is_file() else None, as_json=as_json)
    with readable_ledger(home) or nullcontext() as ledger:
        changed = changed_since(memo.decisions, ledger) if ledger else []
    for decision in changed:
        problem = "differs from the decision that the ledger has on record"
        hint = f"'assay decide again {name}' decides again from the results"
        click.secho(f"warning: {open_campaign.folder / decision.path()}: {problem}; {hint}.", err=True, fg="yellow")
    sys.exit(1 if changed else 0)


def _print_memo(memo: "Memo", page: Path | None, *, as_json: bool) -> None:
    """Print the memo, and where its page is."""
    from assay.reporting.documents.memo import memo_document
    from assay.reporting.terminal.document import print_document
    from assay.reporting.views.view import json_list

    if as_json:
        click.echo(json_list(memo.decisions))
        return
    print_document(memo_document(memo))
    if page is not None:
        click.echo(page)
