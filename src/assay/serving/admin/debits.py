"""Copies the device time of eval runs and batches from their logs to the ledger."""

from collections.abc import Iterable

from assay.records.run import PhaseSeconds
from assay.serving.admin.spend import ChargedResources, HeldTime, ever_charged
from assay.store.ledger.ledger import Ledger


def debit(ledger: Ledger, resource_id: str, charges: Iterable[HeldTime]) -> None:
    """Record the device time of one eval run or batch in the ledger."""
    seconds = sum(charge.device_s for charge in charges)
    if seconds:
        held = PhaseSeconds(run_id=resource_id, attempt=0, rank=0, held_s=seconds, seconds={"evaluation": seconds})
        ledger.record_phase_seconds(held)


def debit_all(ledger: Ledger, resources: ChargedResources) -> None:
    """Record the device time of all charged resources in the ledger, deleted ones included."""
    for project, resource_id in ever_charged(resources.store):
        if (state := resources.find(resource_id, project)) is not None:
            debit(ledger, resource_id, state.charges)
