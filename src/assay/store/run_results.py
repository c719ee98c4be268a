"""What is found out about a run after it has ended: its audit, and how it compares with a baseline.

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
    """Write an audit down as `save_audit` does, in the ledger, too."""
    ledger.record_audit(save_audit(run_dir, audit))


def keep_comparison(ledger: Ledger, run_dir: str, comparison: AnyComparison) -> None:
    """Write a comparison down, in the candidate's folder; the latest of a pair is kept."""
    save_comparison(run_dir, comparison)
    ledger.record_comparison(comparison)


def save_audit(run_dir: str, audit: AuditReport) -> AuditReport:
    """Into the folder alone, whole or not at all. Returns the one that is on record, which may be an earlier
    one that looked at more (`AuditReport.replaces`)."""
    try:
        recorded = saved_audit(run_dir)
    except AssayError:
        recorded = None  # it cannot be read, so it says nothing
    if recorded is not None and not audit.replaces(recorded):
        return recorded
    open_store(run_dir).put(AUDIT_FILE, audit.to_json().encode())
    return audit


def save_comparison(run_dir: str, comparison: AnyComparison) -> None:
    """Likewise, of the candidate's folder."""
    key = f"{COMPARISONS}/{comparison.baseline_run_id}.json"
    open_store(run_dir).put(key, comparison.to_json().encode())


def saved_audit(run_dir: str) -> AuditReport | None:
    """The run's latest audit; None if there is none."""
    path = Path(run_dir) / AUDIT_FILE
    return AuditReport.from_json(path.read_bytes(), source=path) if path.is_file() else None


def saved_comparisons(run_dir: str) -> list[AnyComparison]:
    """Those in which the run is the candidate."""
    paths = sorted((Path(run_dir) / COMPARISONS).glob("*.json"))
    return [comparison_from_json(path.read_bytes(), source=path) for path in paths]
