"""The ledger from the facts: a run's folder and its log of commits hold all that the ledger says about it.

So a lost database costs a command, `assay runs --rebuild`, and no run needs it while it trains.
"""

from pathlib import Path

from assay.base.errors import DataError
from assay.evaluation.evidence.predictions import EVALUATION_FILE, load_evaluation
from assay.launch.campaign_folder import CAMPAIGN_FILE, all_decisions, declared_campaign
from assay.launch.run import RUN_FILE
from assay.records.commit import Commit
from assay.records.run import Attempt, Run
from assay.store.commit_log import CommitLog
from assay.store.ledger.ledger import Ledger
from assay.store.metrics.fold import fold_run
from assay.store.metrics.phases import rank_phase_seconds
from assay.store.metrics.segment import read_segment, segment_path
from assay.store.objects import open_store


def attempt_path(run_dir: Path, attempt: int) -> Path:
    """Where the supervisor writes an attempt down, at its beginning and again at its end."""
    return run_dir / "attempts" / f"attempt-{attempt:04d}.json"


def save_attempt(run_dir: Path, attempt: Attempt) -> None:
    """Write the attempt down, whole or not at all."""
    key = attempt_path(run_dir, attempt.attempt).relative_to(run_dir).as_posix()
    open_store(str(run_dir)).put(key, attempt.to_json().encode())


def saved_attempts(run_dir: Path) -> list[Attempt]:
    """All attempts of a run, the first one first."""
    paths = sorted((run_dir / "attempts").glob("attempt-*.json"))
    return [Attempt.from_json(path.read_bytes(), source=path) for path in paths]


def close_abandoned_attempts(run: Run, log: CommitLog, successor: Attempt) -> None:
    """End on paper the attempts before `successor` whose end nobody wrote down: their supervisor died.

    They held their devices until the last sign of life of any rank. Should one only have been asleep, it writes
    its own end over this one when it wakes up.
    """
    for attempt in saved_attempts(Path(run.run_dir)):
        if attempt.attempt >= successor.attempt or attempt.ended_s is not None:
            continue
        paths = [segment_path(Path(run.run_dir), attempt.attempt, rank) for rank in range(attempt.world_size)]
        seen_s = [read_segment(path).last_at_s() for path in paths if path.exists()]
        own = [each for each in log.entries() if isinstance(each, Commit) and each.attempt == attempt.attempt]
        closed = attempt.model_copy(
            update={
                "ended_s": max([attempt.started_s, *seen_s]),
                "end_step": max((commit.step for commit in own), default=attempt.start_step),
                "outcome": "killed",
                "reason": "its supervisor was gone without a word; held until its last sign of life",
            }
        )
        save_attempt(Path(run.run_dir), closed)


def rebuild_run(ledger: Ledger, run: Run) -> None:
    """Write everything about a run into the ledger again; what is there already stays as it is."""
    run_dir = Path(run.run_dir)
    ledger.record_run(run)
    log = CommitLog(open_store(run.store_url))
    ledger.record_log_entries(run.run_id, dict(enumerate(log.entries())))
    for attempt in saved_attempts(run_dir):
        ledger.record_attempt(attempt)
        if attempt.ended_s is not None:
            record_phases(ledger, run, attempt)
    for path in sorted(run_dir.glob(f"evaluations/*/{EVALUATION_FILE}")):
        ledger.record_evaluation(load_evaluation(path.parent))
    fold_run(ledger, run)


def record_earlier_attempts(ledger: Ledger, run: Run, attempt: Attempt) -> None:
    """Write down what the beginning of an attempt changes about those before it.

    One whose supervisor died has been closed, and steps that were committed are lost after all where the new
    attempt begins before them, because the commit was damaged or not trusted.
    """
    known = {earlier.attempt: earlier for earlier in ledger.attempts(run.run_id)}
    for earlier in saved_attempts(Path(run.run_dir)):
        if earlier.attempt >= attempt.attempt or earlier.ended_s is None:
            continue
        if earlier != known.get(earlier.attempt) or (earlier.end_step or 0) > attempt.start_step:
            ledger.record_attempt(earlier)
            record_phases(ledger, run, earlier)


def record_phases(ledger: Ledger, run: Run, attempt: Attempt) -> None:
    """Write down where the device time of an attempt that has ended went."""
    assert attempt.ended_s is not None and attempt.end_step is not None
    later = [each for each in saved_attempts(Path(run.run_dir)) if each.attempt > attempt.attempt]
    kept_step = min([attempt.end_step or attempt.start_step, *(each.start_step for each in later)])
    for rank in range(attempt.world_size):
        ledger.record_phase_seconds(
            rank_phase_seconds(
                run,
                attempt,
                rank,
                held_to_s=attempt.ended_s,
                committed_step=kept_step,
            )
        )


def rebuild_all(ledger: Ledger, home: Path) -> list[Run]:
    """Write every run and campaign in `home` into the ledger; returns the runs."""
    paths = sorted(home.glob(f"*/{RUN_FILE}"))
    if not paths:
        raise DataError(f"{home}: no runs. Name the folder that holds them in $ASSAY_HOME.")
    runs = [Run.from_json(path.read_bytes(), source=path) for path in paths]
    for run in runs:
        rebuild_run(ledger, run)
    for path in sorted(home.glob(f"campaigns/*/{CAMPAIGN_FILE}")):
        ledger.record_campaign(declared_campaign(path.parent))
        for decision in all_decisions(path.parent):
            ledger.record_decision(decision)
    return runs
