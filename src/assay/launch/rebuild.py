"""The ledger from the facts: a run's folder and its log of commits hold all that the ledger says about it.

So a lost database costs a command, `assay runs --rebuild`, and no run needs it while it trains.
"""

from assay.base.errors import DataError
from assay.launch.bookkeeping import rebuild_run
from assay.launch.campaign.folder import CAMPAIGN_FILE, all_decisions, declared_campaign
from assay.records.run import Run
from assay.store.home import Home
from assay.store.ledger.ledger import Ledger


def rebuild_all(home: Home, ledger: Ledger) -> list[Run]:
    """Write every run and campaign of a home into a ledger; returns the runs."""
    runs = home.runs()
    if not runs:
        raise DataError(f"{home.folder}: no runs. Name the folder that holds them in $ASSAY_HOME.")
    for run in runs:
        rebuild_run(ledger, run)
    for path in sorted(home.campaigns.glob(f"*/{CAMPAIGN_FILE}")):
        ledger.record_campaign(declared_campaign(path.parent))
        for decision in all_decisions(path.parent):
            ledger.record_decision(decision)
    return runs
