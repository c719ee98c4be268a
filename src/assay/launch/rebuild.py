"""The ledger from the facts: a run's folder and its log of commits hold all that the ledger says about it.

So a lost database costs a command, `assay runs --rebuild`, and no run needs it while it trains.
"""

from pathlib import Path

from assay.base.errors import DataError
from assay.launch.bookkeeping import rebuild_run
from assay.launch.campaign.folder import CAMPAIGN_FILE, all_decisions, declared_campaign
from assay.launch.run import RUN_FILE
from assay.records.run import Run
from assay.store.ledger.ledger import Ledger


def rebuild_all(ledger: Ledger, home: Path) -> list[Run]:
    """Write every run and campaign in `home` into the ledger; returns the runs."""
    paths = sorted(home.glob(f"*/{RUN_FILE}"))
    if not paths:
        raise DataError(f"{home}: no runs. Name the folder that holds them in $ASSAY_HOME.")
    runs = [Run.from_json(path.read_bytes(), source=path) for path in paths]
    for run in runs:
        rebuild_run(ledger, run)
    for path in sorted(home.glob(f"campaigns/*/{CAMPAIGN_FILE}")):
        ledger.record_campaign(declared_campaign(path.parent))
        for decision in all_decisions(path.parent):
            ledger.record_decision(decision)
    return runs
