"""Audit a run and save the report, if the run's folder is writable.

Only the run's folder is needed: without a ledger and on read-only storage the result is the same.
"""

from assay.base.errors import StoreError
from assay.records.audit import AuditReport, WeightsDepth
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.ledger.writer import mark_missed
from assay.store.objects import open_store
from assay.store.run_results import save_audit
from assay.training.audit import audit_run


def audit_and_record(
    home: Home, run_id: str, *, check_shards: bool, weights: WeightsDepth
) -> tuple[AuditReport, AuditReport | None, str]:
    """Audit a run; `run_id` may be the beginning of an id.

    Returns the report, the more thorough report that stays on record instead (or None), and why the report
    could not be saved (empty if it was).
    """
    run = home.run(_whole_id(home, run_id))
    log = CommitLog(open_store(run.store_url))
    report = audit_run(run, log, check_shards=check_shards, weights=weights)
    try:
        on_record = save_audit(run.run_dir, report)
    except StoreError as error:
        return report, None, str(error)
    if on_record != report:
        return report, on_record, ""
    try:
        if (ledger := home.find_ledger()) is not None:
            with ledger:
                ledger.record_run(run)
                ledger.record_audit(report)
    except StoreError as error:
        mark_missed(home, run.run_id)
        return report, None, f"{error} It is in the run's folder, and is recorded once the ledger is available."
    return report, None, ""


def _whole_id(home: Home, run_id: str) -> str:
    if home.has_run(run_id) or (ledger := home.find_ledger()) is None:
        return run_id
    with ledger:
        return ledger.run(run_id).run_id
