"""`assay campaign`: baseline and candidates x seeds, within a budget, until the gates have decided."""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.clock import SystemClock
from assay.base.units import number_of
from assay.cli.launch_target import LaunchTarget, launch_target_options, warned
from assay.cli.parameters import CAMPAIGN, FILE, CommandGroup, current_home, readable_ledger, writable_ledger

if TYPE_CHECKING:
    from assay.decision.config import CampaignConfig
    from assay.records.decision import Decision
    from assay.store.home import Home
    from assay.workflows.campaign.power import StatedPower

KEYS_HEAD = (
    "# Campaigns, key by key",
    "",
    "A campaign is a YAML file (see decide.md); `a.b=value` on the command line overrides it; unknown keys are",
    "refused. This page is what `assay campaign keys` prints.",
)


@click.group(cls=CommandGroup)
def campaign() -> None:
    """Train a baseline and its candidates over several seeds, and let declared gates decide.

    A campaign is a YAML file: the known-good recipe, a patch per candidate, seeds and looks, benchmarks, and
    the rule. docs/decide.md explains it; recipes/campaigns holds an example.
    """


@campaign.command("run")
@click.argument("file", type=FILE)
@click.argument("overrides", nargs=-1)
@click.option(
    "--check",
    is_flag=True,
    help="Check the file, its recipe and its data, and say what it will cost, what each look could find and "
    "each guardrail pass; start nothing.",
)
@click.option(
    "--arms-at-once",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Runs that are queued or trained at a time; several need '--on background' or '--on slurm'.",
)
@click.option(
    "--check-seconds",
    type=click.FloatRange(min=0),
    default=3.0,
    show_default=True,
    metavar="SECONDS",
    help="With --check: real steps of the baseline that are measured, behind the first; 0 for none.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the decisions as a JSON list.")
@launch_target_options
def run(
    file: Path,
    overrides: tuple[str, ...],
    check: bool,
    arms_at_once: int,
    check_seconds: float,
    as_json: bool,
    place: LaunchTarget,
) -> None:
    """Run the campaign that FILE declares, or go on with it; then write its memo.

    Each run's id follows from (campaign, arm, seed), so a campaign that was killed goes on where it was. What
    was declared before the first run is refused if it changes; budget_device_hours, workers, owner, dissent and
    least_effect_because may. OVERRIDES are like those of 'assay train', e.g. budget_device_hours=2. Exit code 0
    whatever is decided.

    Runs that are trained in the background or by Slurm need nobody who waits: when this command is killed they
    go on, and when it is run again it waits for those that it finds, wherever they were started.
    """
    if place.on == "allocation" or place.dry_run:
        raise click.UsageError("a campaign runs '--on here', '--on background' or '--on slurm'.")
    if place.on == "here" and arms_at_once > 1:
        raise click.UsageError("--arms-at-once: this process trains one at a time. Add '--on background'.")
    from assay.cli.progress import RunProgress
    from assay.decision.sentences import device_time_text
    from assay.store.ledger.writer import marking
    from assay.workflows.campaign.arm_plan import absent_files, check_arms
    from assay.workflows.campaign.campaign import run_campaign
    from assay.workflows.campaign.folder import check_declaration, declare, read_campaign_file
    from assay.workflows.campaign.memo import write_memo
    from assay.workflows.campaign.power import state_power
    from assay.workflows.campaign.train import ExecutionSettings, InThisProcess

    config = read_campaign_file(file, overrides)
    place.check(config.workers)
    home = current_home()
    num_runs = check_arms(config, beside=file.parent, is_begun=config.name in home.campaign_names())
    check_declaration(home, config, beside=file.parent, clock=SystemClock())
    for absent in absent_files(config, beside=file.parent):
        click.echo(f"warning: {absent} is not there yet; the first look will ask for it", err=True)
    power = state_power(config, home, beside=file.parent)
    for warning in power.warnings:
        click.echo(f"warning: {warning.text}", err=True)
    if check:
        click.echo(
            f"campaign {config.name}: at most {number_of(num_runs, 'run')}{_on_record_text(config, home)}, "
            f"{_looks_text(config.all_looks)}, "
            f"budget {device_time_text(3600 * config.budget_device_hours)}. Nothing was started."
        )
        _print_forecast(config, power, file, 0.0 if place.on == "slurm" else check_seconds)
        return
    opened = declare(home, config, beside=file.parent, clock=SystemClock())
    with writable_ledger(home) as ledger, marking(home, config.name):
        launcher = place.launcher(home, ()) or InThisProcess(home, RunProgress, SystemClock())
        result = run_campaign(
            opened,
            ledger,
            place=ExecutionSettings(launcher, arms_at_once, host=place.host(), warn=warned),
            say=lambda text: click.secho(f"· {text}", fg="cyan", err=True),
        )
    written = write_memo(opened, stopped_by=result.stopped_by)
    print_decisions(written.memo.decisions, as_json=as_json)
    if not as_json:
        if result.stopped_by:
            click.echo(f"not finished: {result.stopped_by}.")
        if written.memo.cost:
            click.echo(f"cost so far: {written.memo.cost}")
        click.echo(written.page)


def _on_record_text(config: "CampaignConfig", home: "Home") -> str:
    """How many of its runs somebody has paid for, or begun to; nothing before the first."""
    from assay.workflows.campaign.arm_plan import run_id_of

    ids = [run_id_of(config.name, arm, seed) for arm in config.arm_names for seed in config.seed_numbers]
    known = sum(home.has_run(run_id) for run_id in ids)
    return f" ({known:,} on record already: what is finished is not trained again)" if known else ""


def _print_forecast(config: "CampaignConfig", power: "StatedPower", file: Path, seconds: float) -> None:
    """Cost, where so many seconds are measured for it, and power."""
    from assay.workflows.campaign.expected_cost import expected_cost
    from assay.workflows.campaign.power import power_lines

    if seconds:
        click.echo(f"measuring {seconds:g} s of real steps, in a folder that is removed ...", err=True)
        click.echo(expected_cost(config, beside=file.parent, seconds=seconds).line())
    for line in power_lines(power, over_seeds=config.rule.over_seeds):
        click.echo(line)


def _looks_text(looks: Sequence[int]) -> str:
    if len(looks) == 1:
        return f"one look, at {number_of(looks[0], 'seed')}"
    return f"looks at {', '.join(map(str, looks[:-1]))} and {looks[-1]} seeds"


@campaign.command("keys")
def keys() -> None:
    """Print every key of a campaign's file with its default and meaning."""
    from assay.base.key_reference import key_reference
    from assay.decision.config import CampaignConfig

    click.echo(key_reference(KEYS_HEAD, CampaignConfig), nl=False)


@campaign.command("list")
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON list, the newest campaign first (docs/json.md)."
)
def list_(as_json: bool) -> None:
    """List the campaigns and their newest decisions, the newest campaign first.

    Read from the ledger, so a team that shares one sees everybody's. 'assay runs --rebuild' writes it anew
    from the folders.
    """
    from assay.reporting.terminal.campaign_list import print_campaigns
    from assay.reporting.views.campaign_list import campaign_lines
    from assay.reporting.views.view import json_list

    home = current_home()
    with readable_ledger(home) or nullcontext() as ledger:
        lines = campaign_lines(ledger) if ledger else []
    if as_json:
        click.echo(json_list(lines))
    elif not lines:
        click.echo(f"No campaigns in {home.folder} yet. 'assay campaign run FILE' begins one.")
    else:
        print_campaigns(lines)


@campaign.command("show")
@click.argument("name", type=CAMPAIGN)
@click.option("--json", "as_json", is_flag=True, help="Print the newest decisions as a JSON list.")
def show(name: str, as_json: bool) -> None:
    """Show what campaign NAME has decided so far, without judging anything again.

    Exit code 1 if a decision's file is not what the ledger has on record; 'assay decide NAME' judges again.
    """
    from assay.workflows.campaign.decisions import changed_since
    from assay.workflows.campaign.folder import find_campaign
    from assay.workflows.campaign.memo import MEMO_PAGE, cost_of_runs, held_by_run, newest_decisions

    home = current_home()
    opened = find_campaign(home, name)
    decisions = list(newest_decisions(opened).values())
    print_decisions(decisions, as_json=as_json)
    runs = [run for each in decisions for run in each.runs]
    if not as_json and (cost := cost_of_runs(opened, held_by_run(opened, runs))):
        click.echo(f"cost so far: {cost}")
    if not as_json and (page := opened.folder / MEMO_PAGE).is_file():
        click.echo(page)
    with readable_ledger(home) or nullcontext() as ledger:
        changed = changed_since(decisions, ledger) if ledger else []
    for decision in changed:
        said = "is not the decision that was made: the ledger has another one on record"
        cure = f"'assay decide {name}' judges the results again"
        click.secho(f"warning: {opened.folder / decision.place()}: {said}; {cure}.", err=True, fg="yellow")
    sys.exit(1 if changed else 0)


def print_decisions(decisions: "Sequence[Decision]", *, as_json: bool) -> None:
    """Each decision with its gates, clause by clause, in the memo's marks and words."""
    from assay.reporting.terminal.terminal import RECOMMENDATION_STYLES, TONE_STYLES
    from assay.reporting.views.memo import clause_tone, gate_text, mark_of, unasked_text
    from assay.reporting.views.view import json_list

    if as_json:
        click.echo(json_list(decisions))
        return
    if not decisions:
        click.echo("No decision yet: the first declared look is still to come.")
    for decision in decisions:
        word = decision.recommendation
        click.secho(f"{word.upper()}  {decision.candidate}", fg=RECOMMENDATION_STYLES[word], bold=True)
        click.echo(f"  {decision.sentence}")
        for warning in decision.warnings:
            click.secho(f"  warning: {warning}", fg="yellow")
        for gate in decision.gates:
            click.echo(f"  gate {gate.gate}: {gate_text(gate)}")
            for clause in gate.clauses:
                mark = click.style(
                    mark_of(decision, gate, clause), fg=TONE_STYLES[clause_tone(decision, gate, clause)]
                )
                click.echo(
                    f"    {mark} {clause.name:<22} {clause.seen}  ({clause.requirement}): {clause.reason}"
                )
            if unasked := unasked_text(decision, gate):
                click.echo(f"    {unasked}")
