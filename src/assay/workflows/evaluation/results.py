"""What the evaluation of a run's commits found and cost, from its store and its folder into the ledger."""

from assay.base.clock import SystemClock
from assay.evals.queue import held_seconds, stored_results
from assay.records.run import PhaseSeconds, Run
from assay.store.ledger.ledger import Ledger
from assay.store.objects import ObjectStore, open_store
from assay.store.retry_policy import RetryPolicy


def evaluation_seconds(run: Run, store: ObjectStore, *, over_by_s: float | None = None) -> PhaseSeconds:
    """What the evaluation of a run's commits has held, by the leases in its store and in its own folder."""
    stores = [store] if store.url == run.run_dir else [store, open_store(run.run_dir)]
    seconds = sum(held_seconds(item, over_by_s=over_by_s) for item in stores)
    return PhaseSeconds(run_id=run.run_id, attempt=0, rank=0, held_s=seconds, seconds={"evaluation": seconds})


def write_results(ledger: Ledger, run: Run) -> None:
    """Write what the run's store and folder hold of evaluations into the ledger, if they answer at once."""
    store = open_store(run.store_url, RetryPolicy(0.0))
    here = [] if store.url == run.run_dir else stored_results(open_store(run.run_dir))
    for _, result in [*here, *stored_results(store)]:
        ledger.record_benchmark_result(result)
    # Work that goes on is counted when it is over: else every reader would find another number.
    evaluated = evaluation_seconds(run, store, over_by_s=SystemClock().now_s())
    if evaluated.held_s:
        ledger.record_phase_seconds(evaluated)
