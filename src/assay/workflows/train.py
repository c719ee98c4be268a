"""Train a run to the end, then evaluate it, audit it, and record the results.

Supervisor (attempts) -> predictions -> evaluation -> audit -> ledger
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from assay.base.clock import Clock, SystemClock
from assay.base.errors import AssayError, FencedError, Interrupted, StoreAwayError, StoreError, StoreFullError
from assay.data.loader.lane_shares import LaneShares
from assay.elastic.supervisor import Nodes, RestartPolicy, RunObserver, Supervisor
from assay.records.audit import AuditReport
from assay.records.evaluation import AnyEvaluation
from assay.records.run import Attempt, Run
from assay.statistics.predictions import PREDICTIONS_FILE, evaluation_folder, save_evaluation
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.launches import end_launch_here
from assay.store.ledger.writer import FINISH_S, LEAVE_S, LedgerWriter
from assay.store.missing_log import reject_missing_log
from assay.store.objects import open_store
from assay.store.retry_policy import RetryPolicy
from assay.store.run_location import reject_copy, reject_links
from assay.store.run_results import save_audit, saved_audit
from assay.trackers.follow import BackgroundSinks
from assay.training.audit import audit_run
from assay.training.model_folders import check_unchanged
from assay.training.recipe import recipe_of
from assay.workflows.bookkeeping import Bookkeeper
from assay.workflows.evaluation.background import BackgroundEvaluator
from assay.workflows.events import EventCommand
from assay.workflows.fork import bring_commit
from assay.workflows.run import VALIDATION, check_parallel, finished_entry

RunOutcome = Literal["finished", "stopped", "moved", "failed"]
"""`stopped`: committed on request, and can be resumed. `moved`: this node no longer leads the run, and other nodes
continue it. `failed`: would fail again."""


class RunResult(NamedTuple):
    """The result of a run that is no longer training."""

    run: Run
    outcome: RunOutcome
    last_attempt: Attempt | None = None
    """None if the run failed, or finished earlier and kept no record of it."""
    evaluation: AnyEvaluation | None = None
    audit: AuditReport | None = None
    error: AssayError | None = None
    """Why the run failed, or the fence because of which it moved; None otherwise."""
    continues_on: str = ""
    """Nodes that continue the run if it moved."""
    waits_for: str = ""
    """Why the run stopped without a request."""


def train_run(
    home: Home,
    run: Run,
    writer: LedgerWriter,
    *,
    world_size: int,
    policy: RestartPolicy,
    observers: Sequence[RunObserver] = (),
    clock: Clock | None = None,
    nodes: Nodes | None = None,
) -> RunResult:
    """Train until the run finishes, stops or fails; then evaluate, audit and record it, and send events.

    A finished run is not trained again: only evaluation and audit are completed. `writer` records facts in the
    ledger, which may be down. `nodes`: by default this machine. Raises `StoreAwayError` if the store does not
    respond within the policy's retry budget, and `StoreFullError` if there is no space for what is written
    after the last step.
    """
    events = EventCommand(home, run)
    all_observers = [*observers, events, BackgroundSinks(home, run)]
    try:
        result = _train_run(
            home,
            run,
            writer,
            world_size=world_size,
            policy=policy,
            observers=all_observers,
            clock=clock or SystemClock(),
            nodes=nodes,
        )
    except (StoreAwayError, StoreFullError) as error:
        explained = _with_what_goes_on(error, run)
        events.notify("failed", step=None, text=str(explained))
        if explained is error:
            raise
        raise explained from error
    except Interrupted:
        last = next(reversed(saved_attempts(Path(run.run_dir))), None)
        events.notify("stopped", step=last.end_step if last else None, text=last.reason if last else "")
        raise
    finally:
        with suppress(StoreError):
            if (ended := end_launch_here(run)) is not None:
                writer.put(lambda ledger: ledger.record_launch(ended))
    last = result.last_attempt
    text = str(result.error) if result.error else (last.reason if last else "")
    if result.continues_on:
        text = f"it continues on {result.continues_on}: {text}"
    elif result.waits_for:
        text = f"{result.waits_for}: {text}"
    events.notify(result.outcome, step=last.end_step if last else None, text=text)
    return result


def _train_run(
    home: Home,
    run: Run,
    writer: LedgerWriter,
    *,
    world_size: int,
    policy: RestartPolicy,
    observers: Sequence[RunObserver],
    clock: Clock,
    nodes: Nodes | None,
) -> RunResult:
    recipe = recipe_of(run)
    for size in (world_size, *policy.world_sizes):
        LaneShares(recipe.loader.lanes, size)
    check_parallel(recipe, policy.parallel, share=policy.share)
    retry_policy = RetryPolicy(policy.store_retry_s, clock=clock)
    log = CommitLog(open_store(run.store_url, retry_policy))
    reject_copy(run)
    reject_links(Path(run.run_dir))
    reject_missing_log(run, log)
    bring_commit(home, run)
    evaluator = BackgroundEvaluator(home, run)
    all_observers: list[RunObserver] = [Bookkeeper(run, writer, clock, home.settings()), evaluator, *observers]
    supervisor = Supervisor(
        run, log, policy=policy, observers=all_observers, clock=clock, nodes=nodes, retry_policy=retry_policy
    )
    last_attempt = next(reversed(saved_attempts(Path(run.run_dir))), None)
    finished = finished_entry(log)
    if finished is None:
        check_unchanged(run, recipe)
    try:
        if finished is None:
            last_attempt = supervisor.run(world_size) or last_attempt
            finished = log.finished()
    except StoreAwayError:
        raise
    except FencedError as error:
        if nodes is not None and supervisor.stop_requested:  # this node does not follow the one that fenced it
            return RunResult(run, "moved", last_attempt, continues_on="another node")
        return RunResult(run, "failed" if nodes is None else "moved", error=error)
    except AssayError as error:
        return RunResult(run, "failed", error=_with_what_goes_on(error, run))
    finally:
        if finished is None:
            evaluator.stop()
    if finished is None:
        continues_on = ""
        if nodes is not None and not supervisor.waits_for:
            writer.wait(LEAVE_S)  # two nodes must not write to a ledger at the same time
            continues_on = ", ".join(nodes.staying())
        outcome: RunOutcome = "moved" if continues_on else "stopped"
        return RunResult(run, outcome, last_attempt, continues_on=continues_on, waits_for=supervisor.waits_for)
    evaluation = evaluate_run(run, log)
    writer.put(lambda ledger: ledger.record_evaluation(evaluation))
    log.sweep()  # removes what replaced attempts wrote after they woke up
    audit = save_audit(run.run_dir, audit_run(run, log))
    writer.put(lambda ledger: ledger.record_audit(audit))
    writer.put(lambda ledger: ledger.record_write(run.run_id))
    evaluator.finish()
    writer.wait(FINISH_S)
    return RunResult(run, "finished", last_attempt, evaluation, audit)


def is_complete(run: Run, log: CommitLog) -> bool:
    """Return whether the run has finished, and its evaluation and audit have been saved."""
    finished, audit = log.finished(), saved_audit(run.run_dir)
    return finished is not None and audit is not None and audit.step == finished.step


def _with_what_goes_on(error: AssayError, run: Run) -> AssayError:
    """Add how to resume to an error about a full disk, which any writer may raise."""
    resume = f"'assay train --resume {run.run_id}'"
    if not isinstance(error, StoreFullError) or resume in str(error):
        return error
    return StoreFullError(f"{error} {resume} continues from its last commit.")


def evaluate_run(run: Run, log: CommitLog) -> AnyEvaluation:
    """Return the metrics of the run's last weights on its validation rows."""
    # Imported here: scipy is slow to import, and only the last step needs it.
    from assay.data.dataset.dataset import Dataset
    from assay.data.dataset.held_out.leaks import quick_leaks
    from assay.statistics.evaluate import evaluate_predictions

    finished = log.finished()
    assert finished is not None, "only a finished run has its last predictions"
    folder = evaluation_folder(Path(run.run_dir), step=finished.step, split=VALIDATION)
    recipe = recipe_of(run)
    leak = quick_leaks(Dataset.open(Path(recipe.data.dataset)), recipe.data.split)
    evaluation = evaluate_predictions(
        folder / PREDICTIONS_FILE,
        recipe.method.predictions,
        run_id=run.run_id,
        step=finished.step,
        weights_digest=finished.weights_digest,
        dataset_fingerprint=run.dataset_fingerprint,
        split=VALIDATION,
        num_leaking=None if leak is None else leak.num_rows,
    )
    save_evaluation(folder, evaluation)
    return evaluation
