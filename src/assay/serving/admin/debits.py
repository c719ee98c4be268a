"""Device time of runs of evals and of batches in the ledger, under their ids: the charges in their logs."""

from collections.abc import Iterable

from assay.records.run import PhaseSeconds
from assay.serving.admin.spend import ChargedThings, HeldTime, ever_charged
from assay.store.ledger.ledger import Ledger


def debit(ledger: Ledger, thing_id: str, charges: Iterable[HeldTime]) -> None:
    """Write down what one of them held."""
    seconds = sum(charge.device_s for charge in charges)
    if seconds:
        held = PhaseSeconds(run_id=thing_id, attempt=0, rank=0, held_s=seconds, seconds={"evaluation": seconds})
        ledger.record_phase_seconds(held)


def debit_all(ledger: Ledger, things: ChargedThings) -> None:
    """What each of them held, be it deleted."""
    for project, thing_id in ever_charged(things.store):
        if (state := things.find(thing_id, project)) is not None:
            debit(ledger, thing_id, state.charges)
