"""`assay campaign`: baseline and candidates x seeds, within a budget, until the gates have decided."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from assay.records.campaign import Campaign
    from assay.records.decision import Decision

KEYS_HEAD = (
    "# Campaigns, key by key",
    "",
    "A campaign is a YAML file (see decide.md); `a.b=value` on the command line overrides it; unknown keys are",
    "refused. This page is what `assay campaign keys` prints.",
)
LISTED = (
    "candidate", "recommendation", "is_final", "seeds", "effect", "low", "high", "unit", "device_hours",
)  # fmt: skip
COLOURS = {"scale": "green", "narrow": "yellow", "stop": "red"}


@click.group()
def campaign() -> None:
    """Train a baseline and its candidates over several seeds, and let declared gates decide.

    A campaign is a YAML file: the known-good recipe, a patch per candidate, seeds and looks, benchmarks, and
    the rule. docs/decide.md explains it; recipes/campaigns holds an example.
    """


@campaign.command("run")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("overrides", nargs=-1)
@click.option("--check", is_flag=True, help="Check the file, its recipe and its data; start nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the decisions as a JSON list.")
def run(file: Path, overrides: tuple[str, ...], check: bool, as_json: bool) -> None:
    """Run the campaign that FILE declares, or go on with it; then write its memo.

    Each run's id follows from (campaign, arm, seed), so a campaign that was killed goes on where it was. What
    was declared before the first run is refused if it changes; budget_device_hours, workers and dissent may.
    OVERRIDES are like those of 'assay train', e.g. budget_device_hours=2. Exit code 0 whatever is decided.
    """
    from assay.base.clock import SystemClock
    from assay.cli.screens.progress import ProgressBar
    from assay.launch.campaign.arms import absent_files, check_arms
    from assay.launch.campaign.campaign import run_campaign
    from assay.launch.campaign.folder import declare, read_campaign_file
    from assay.launch.campaign.memo import write_memo
    from assay.store.home import Home

    config = read_campaign_file(file, overrides)
    num_runs = check_arms(config, beside=file.parent)
    for absent in absent_files(config, beside=file.parent):
        click.echo(f"warning: {absent} is not there yet; the first look will ask for it", err=True)
    if check:
        click.echo(
            f"campaign {config.name}: at most {num_runs} runs, looks at "
            f"{', '.join(map(str, config.all_looks))} seeds, budget {config.budget_device_hours:g} "
            "device-hours. Nothing was started."
        )
        return
    home = Home.from_environment()
    opened = declare(home, config, beside=file.parent, clock=SystemClock())
    with home.open_ledger() as ledger:
        result = run_campaign(
            opened,
            ledger,
            watcher_of=ProgressBar,
            say=lambda text: click.secho(f"· {text}", fg="cyan", err=True),
        )
    written = write_memo(opened, stopped_by=result.stopped_by)
    print_decisions(written.memo.decisions, as_json=as_json)
    if not as_json:
        if result.stopped_by:
            click.echo(f"not finished: {result.stopped_by}.")
        click.echo(written.page)


@campaign.command("keys")
def keys() -> None:
    """Print every key of a campaign's file with its default and meaning."""
    from assay.base.key_reference import key_reference
    from assay.evaluation.decision.config import CampaignConfig

    click.echo(key_reference(KEYS_HEAD, CampaignConfig), nl=False)


@campaign.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, the newest campaign first.")
def list_(as_json: bool) -> None:
    """List the campaigns and their newest decisions, the newest campaign first.

    Read from the ledger, so a team that shares one sees everybody's. 'assay runs --rebuild' writes it anew
    from the folders.

    Keys with --json: campaign, created, candidate, recommendation, is_final, seeds, effect, low, high, unit,
    device_hours; candidate and all after it are null before a campaign's first look.
    """
    import json

    from assay.cli.screens.terminal import stdout
    from assay.store.home import Home

    home = Home.from_environment()
    ledger = home.find_ledger()
    found = [(each, ledger.decisions(each.name)) for each in ledger.campaigns()] if ledger else []
    if ledger:
        ledger.close()
    if as_json:
        click.echo(json.dumps([tree for each, decisions in found for tree in _list_trees(each, decisions)]))
    elif not found:
        click.echo(f"No campaigns in {home.folder} yet. 'assay campaign run FILE' begins one.")
    else:
        stdout().print(_list_table(found))


@campaign.command("show")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print the newest decisions as a JSON list.")
def show(name: str, as_json: bool) -> None:
    """Show what campaign NAME has decided so far, without judging anything again."""
    from assay.launch.campaign.folder import find_campaign
    from assay.launch.campaign.memo import newest_decisions
    from assay.store.home import Home

    opened = find_campaign(Home.from_environment(), name)
    print_decisions(list(newest_decisions(opened).values()), as_json=as_json)


def print_decisions(decisions: "Sequence[Decision]", *, as_json: bool) -> None:
    """Each decision with its gates: a line per clause."""
    import json

    if as_json:
        click.echo(json.dumps([each.to_tree() for each in decisions]))
        return
    if not decisions:
        click.echo("No decision yet: the first declared look is still to come.")
    for decision in decisions:
        click.secho(
            f"{decision.recommendation.upper()}  {decision.candidate}",
            fg=COLOURS[decision.recommendation],
            bold=True,
        )
        click.echo(f"  {decision.sentence}")
        for gate in decision.gates:
            click.echo(f"  gate {gate.gate}: {gate.verdict}")
            for clause in gate.clauses:
                mark = {"pass": "✓", "fail": "✕", "undecided": "○"}[clause.verdict]
                click.echo(f"    {mark} {clause.name:<22} {clause.seen}  ({clause.asks})")


def _list_trees(campaign: "Campaign", decisions: "Sequence[Decision]") -> list[dict[str, object]]:
    from assay.base.clock import utc_text

    about: dict[str, object] = {"campaign": campaign.name, "created": utc_text(campaign.created_s)}
    newest = {each.candidate: each for each in decisions}
    return [
        {
            **about,
            "candidate": each.candidate,
            "recommendation": each.recommendation,
            "is_final": each.is_final,
            "seeds": each.look.num_seeds,
            "effect": each.effect.value,
            "low": each.effect.low,
            "high": each.effect.high,
            "unit": each.unit,
            "device_hours": each.spent_s / 3600.0,
        }
        for each in newest.values()
    ] or [{**about, **dict.fromkeys(LISTED)}]


def _list_table(found: "Sequence[tuple[Campaign, Sequence[Decision]]]") -> "Table":
    from rich.table import Table
    from rich.text import Text

    from assay.base.clock import utc_text
    from assay.base.units import duration_text
    from assay.evaluation.decision.words import interval_words

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("campaign", "candidate", "decision", "effect"):
        table.add_column(title, no_wrap=True)
    for title in ("seeds", "device time", "declared (UTC)"):
        table.add_column(title, justify="right", no_wrap=True)
    for campaign, decisions in found:
        declared = utc_text(campaign.created_s)[:16].replace("T", " ")
        if not decisions:
            table.add_row(campaign.name, "", "no look yet", "", "", "", declared)
        for each in {each.candidate: each for each in decisions}.values():
            table.add_row(
                campaign.name,
                each.candidate,
                Text(
                    each.recommendation + ("" if each.is_final else ", open"),
                    style=COLOURS[each.recommendation],
                ),
                interval_words(each.effect, each.unit),
                str(each.look.num_seeds),
                duration_text(each.spent_s),
                declared,
            )
    return table
