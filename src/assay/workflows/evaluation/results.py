"""Records results and device time of a run's evaluations in the ledger."""

from assay.base.clock import SystemClock
from assay.evals.queue import held_seconds, stored_results
from assay.records.run import PhaseSeconds, Run
from assay.store.ledger.ledger import Ledger
from assay.store.objects import ObjectStore, open_store
from assay.store.retry_policy import RetryPolicy


def evaluation_seconds(run: Run, store: ObjectStore, *, over_by_s: float | None = None) -> PhaseSeconds:
    """Return the device time of evaluating a run's commits, by the leases in its store and folder."""
    stores = [store] if store.url == run.run_dir else [store, open_store(run.run_dir)]
    seconds = sum(held_seconds(item, over_by_s=over_by_s) for item in stores)
    return PhaseSeconds(run_id=run.run_id, attempt=0, rank=0, held_s=seconds, seconds={"evaluation": seconds})


def write_results(ledger: Ledger, run: Run) -> None:
    """Record the results in the run's store and folder in the ledger, without retries."""
    store = open_store(run.store_url, RetryPolicy(0.0))
    here = [] if store.url == run.run_dir else stored_results(open_store(run.run_dir))
    for _, result in [*here, *stored_results(store)]:
        ledger.record_benchmark_result(result)
    # Running evaluations are counted when they end; otherwise every reader would see another number.
    evaluated = evaluation_seconds(run, store, over_by_s=SystemClock().now_s())
    if evaluated.held_s:
        ledger.record_phase_seconds(evaluated)
