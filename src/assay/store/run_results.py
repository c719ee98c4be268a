"""Results about a run that has ended: its audit and its comparisons with baselines.

    run's folder/  audit.json                   AuditReport, the latest that looked at as much as any
                   comparisons/BASELINE.json    AnyComparison with that run as the baseline, the latest

Each is put into the folder first and then into the ledger, so that a ledger can be made anew from the folders.
"""

from pathlib import Path

from assay.base.errors import AssayError
from assay.records.audit import AuditReport
from assay.records.evaluation import AnyComparison, comparison_from_json
from assay.store.ledger.ledger import Ledger
from assay.store.objects import open_store

AUDIT_FILE = "audit.json"
COMPARISONS = "comparisons"


def keep_audit(ledger: Ledger, run_dir: str, audit: AuditReport) -> None:
    """Save an audit in the run's folder and in the ledger."""
    ledger.record_audit(save_audit(run_dir, audit))


def keep_comparison(ledger: Ledger, run_dir: str, comparison: AnyComparison) -> None:
    """Save a comparison in the candidate's folder and in the ledger; it replaces an earlier one of the pair."""
    save_comparison(run_dir, comparison)
    ledger.record_comparison(comparison)


def save_audit(run_dir: str, audit: AuditReport) -> AuditReport:
    """Save an audit in the run's folder, atomically. Return the stored audit, which may be an earlier, deeper
    one (`AuditReport.replaces`)."""
    try:
        recorded = saved_audit(run_dir)
    except AssayError:
        recorded = None  # it cannot be read, so it says nothing
    if recorded is not None and not audit.replaces(recorded):
        return recorded
    open_store(run_dir).put(AUDIT_FILE, audit.to_json().encode())
    return audit


def save_comparison(run_dir: str, comparison: AnyComparison) -> None:
    """Save a comparison in the candidate's folder only."""
    key = f"{COMPARISONS}/{comparison.baseline_run_id}.json"
    open_store(run_dir).put(key, comparison.to_json().encode())


def saved_audit(run_dir: str) -> AuditReport | None:
    """Return the run's audit, or None."""
    path = Path(run_dir) / AUDIT_FILE
    return AuditReport.from_json(path.read_bytes(), source=path) if path.is_file() else None


def saved_comparisons(run_dir: str) -> list[AnyComparison]:
    """Return the comparisons with the run as the candidate."""
    paths = sorted((Path(run_dir) / COMPARISONS).glob("*.json"))
    return [comparison_from_json(path.read_bytes(), source=path) for path in paths]
