"""Updates the ledger from a run's local folder."""

from pathlib import Path

from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.incidents import read_incidents
from assay.store.ledger.ledger import Ledger
from assay.store.metrics.fold import fold_run
from assay.store.objects import open_store


def catch_up(ledger: Ledger, run: Run) -> None:
    """Record a run's new metrics and log entries. A run without a local folder is left unchanged."""
    fold_run(ledger, run)
    if Path(run.store_url).is_dir():
        entries = CommitLog(open_store(run.store_url)).entries()
        ledger.record_log_entries(run.run_id, dict(enumerate(entries)))
    record_incidents(ledger, run)


def record_incidents(ledger: Ledger, run: Run) -> None:
    """Record the incidents of a run."""
    ledger.record_incidents(run.run_id, dict(enumerate(read_incidents(Path(run.run_dir)))))
