"""Device time of runs of evals and of batches in the ledger, under their ids: the charges in their logs."""

from collections.abc import Iterable

from assay.base.clock import SystemClock
from assay.records.run import PhaseSeconds
from assay.serving.admin.spend import ChargedThings, HeldTime, ever_charged
from assay.serving.batches.batches import BatchShelf
from assay.serving.evals.runs import EvalRunShelf
from assay.store.home import Home
from assay.store.ledger.ledger import Ledger
from assay.store.objects import open_store


def record_answered(ledger: Ledger, thing_id: str, charges: Iterable[HeldTime]) -> None:
    """Debit what one of them held."""
    seconds = sum(each.device_s for each in charges)
    if seconds:
        held = PhaseSeconds(run_id=thing_id, attempt=0, rank=0, held_s=seconds, seconds={"evaluation": seconds})
        ledger.record_phase_seconds(held)


def write_answered(ledger: Ledger, home: Home) -> None:
    """Debit what all of a home's held."""
    if not home.api.is_dir():
        return
    store, clock = open_store(str(home.api)), SystemClock()
    things = ChargedThings(EvalRunShelf(store, clock).shelf, BatchShelf(store, clock).shelf)
    for project, thing_id in ever_charged(store):  # what was deleted among them
        if (state := things.find(thing_id, project)) is not None:
            record_answered(ledger, thing_id, state.charges)
