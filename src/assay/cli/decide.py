"""`assay decide`: decide scale, narrow or stop from the results of a campaign."""

import click

from assay.base.clock import SystemClock
from assay.cli.parameters import CAMPAIGN, current_home, writable_ledger


@click.command()
@click.argument("campaign", type=CAMPAIGN)
@click.option(
    "--now",
    is_flag=True,
    help="Take an undeclared look at the finished seeds. It is recorded, spends error reserved for such looks, "
    "and can find harm or a clear gain, but not futility.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the newest decisions as a JSON list.")
def decide(campaign: str, now: bool, as_json: bool) -> None:
    """Decide CAMPAIGN again from its per-item results, and write its memo.

    If a recorded decision no longer follows from the results, the command fails with exit code 1. It trains
    nothing; 'assay campaign run' does.
    """
    from assay.cli.campaign import print_decisions
    from assay.store.ledger.writer import marking
    from assay.workflows.campaign.folder import find_campaign
    from assay.workflows.campaign.look import decide_again, look_now
    from assay.workflows.campaign.memo import write_memo

    home = current_home()
    open_campaign = find_campaign(home, campaign)
    with writable_ledger(home) as ledger, marking(home, campaign):
        decide_again(open_campaign, ledger, clock=SystemClock())
        if now:
            look_now(open_campaign, ledger, clock=SystemClock())
    written = write_memo(open_campaign)
    print_decisions(written.memo.decisions, as_json=as_json)
    if not as_json:
        click.echo(written.page)
