"""Trains the arms."""

from collections.abc import Sequence
from pathlib import Path

from assay.base.clock import Clock
from assay.launch.campaign.folder import OpenCampaign
from assay.launch.drive import drive, evaluate_run
from assay.launch.ranks.supervisor import RestartPolicy, Watcher
from assay.records.evaluation import ClassifierEvaluation
from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.ledger.ledger import Ledger
from assay.store.metrics.phases import rank_phase_seconds
from assay.store.metrics.segment import read_segment, segment_path
from assay.store.objects import open_store
from assay.training.audit import audit_run


def train_arm(
    campaign: OpenCampaign,
    run: Run,
    ledger: Ledger,
    *,
    watchers: Sequence[Watcher],
    clock: Clock,
) -> ClassifierEvaluation | None:
    """The run's last evaluation: trained, resumed or found. None where the run was asked to stop."""
    log = CommitLog(open_store(run.store_url))
    if log.finished() is None:
        settle(run, ledger)
        return drive(
            campaign.home,
            run,
            ledger,
            world_size=campaign.config.workers,
            policy=RestartPolicy(),
            watchers=watchers,
            clock=clock,
        ).evaluation
    known = ledger.evaluations(run.run_id)
    if known and ledger.audit(run.run_id) is not None:
        return known[-1]
    # Trained, and killed before its evaluation or its audit was written down.
    settle(run, ledger)
    evaluation = evaluate_run(run, log)
    ledger.record_evaluation(evaluation)
    ledger.record_audit(audit_run(run, log))
    return evaluation


def device_seconds_of(run_id: str, ledger: Ledger) -> float:
    """Device time of a run's attempts that are in the ledger, over all ranks."""
    return sum(each.held_s for each in ledger.phase_seconds(run_id))


def settle(run: Run, ledger: Ledger) -> None:
    """Debit attempts whose supervisor died before it could: until the last sign of life of each rank.

    Only for a run that nobody drives. An attempt that left no sign cost nothing that can be known.
    """
    settled = {each.attempt for each in ledger.phase_seconds(run.run_id)}
    for attempt in ledger.attempts(run.run_id):
        if attempt.attempt in settled:
            continue
        for rank in range(attempt.world_size):
            path = segment_path(Path(run.run_dir), attempt.attempt, rank)
            segment = read_segment(path) if path.exists() else None
            if segment is None or segment.header is None or not len(segment.phase_changes.at_s):
                continue
            seen_s = float(segment.header.wall_of(segment.phase_changes.at_s)[-1])
            commits = CommitLog(open_store(run.store_url)).commits()
            ledger.record_phase_seconds(
                rank_phase_seconds(
                    run,
                    attempt,
                    rank,
                    held_to_s=max(seen_s, attempt.started_s),
                    committed_step=max([attempt.start_step, *(each.step for each in commits)]),
                )
            )
