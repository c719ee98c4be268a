"""`assay decide`: scale, narrow or stop, from the per-item results of a campaign."""

import click

from assay.base.clock import SystemClock
from assay.cli.given import CAMPAIGN, given_home, opened_ledger


@click.command()
@click.argument("campaign", type=CAMPAIGN)
@click.option(
    "--now",
    is_flag=True,
    help="Take a look that was not declared, at the seeds that are finished. It is recorded, spends error that "
    "was kept for such looks, and can find harm or a clear gain, never futility.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the newest decisions as a JSON list.")
def decide(campaign: str, now: bool, as_json: bool) -> None:
    """Judge CAMPAIGN again from its per-item results, and write its memo.

    Nobody edits a verdict: a decision on record that does not follow from the results any more is refused
    with exit code 1. Trains nothing; 'assay campaign run' does.
    """
    from assay.cli.campaign import print_decisions
    from assay.store.ledger.writer import marking
    from assay.workflows.campaign.folder import find_campaign
    from assay.workflows.campaign.look import decide_again, look_now
    from assay.workflows.campaign.memo import write_memo

    home = given_home()
    opened = find_campaign(home, campaign)
    with opened_ledger(home) as ledger, marking(home, campaign):
        decide_again(opened, ledger, clock=SystemClock())
        if now:
            look_now(opened, ledger, clock=SystemClock())
    written = write_memo(opened)
    print_decisions(written.memo.decisions, as_json=as_json)
    if not as_json:
        click.echo(written.page)
