"""Detects a commit log that was moved, emptied, truncated or swapped with another run's.

An attempt appends to the log before it writes anything else. If a record, metrics or a checkpoint of an attempt
exist that the log does not know, the log was moved or emptied. Continuing would reuse attempt numbers: it would
overwrite old metrics and checkpoints, and new ranks would wait at a stale rendezvous. The record of an ended
attempt names its last commit and is written after it, so a log without that commit has lost its end.

Conversely, if all commits of a log are from attempts that left nothing in the run's folder, two runs were given one
`--store`, and the second would continue with the weights of the first.
"""

from collections.abc import Iterator
from pathlib import Path

from assay.base.errors import DamagedDataError
from assay.records.log_summary import LogSummary
from assay.records.run import Attempt, Run
from assay.store.attempts import attempt_path, saved_attempts
from assay.store.commit_log import CHECKPOINT_PREFIX, LOG_PREFIX, CommitLog, checkpoints_from, parse_checkpoint_folder


def reject_missing_log(run: Run, log: CommitLog) -> None:
    """Raise `DamagedDataError` if the log lost entries or belongs to another run."""
    if (problem := missing_log(run, log)) is not None:
        raise DamagedDataError(f"run '{run.run_id}' cannot go on: {problem}")
    committed_attempts = log.summary().last_steps.keys() - {0}  # a fork begins with the commit of another run
    if (
        committed_attempts
        and run.store_url != run.run_dir
        and committed_attempts.isdisjoint(number for number, _ in _remains_here(run))
    ):
        raise DamagedDataError(
            f"run '{run.run_id}' cannot go on: {log.store.url}/{LOG_PREFIX} has commits, and none is of an "
            f"attempt that {run.run_dir} knows. They are of another run with the same --store: give each its "
            "own. Or the run's folder lost its attempts: put them back."
        )


def missing_log(run: Run, log: CommitLog) -> str | None:
    """Return what the log lacks, the proof and a hint; None if it has every attempt and its end."""
    # What was left first: an attempt is in the log before it leaves anything.
    remains, attempts = max(_remains(run, log), default=None), saved_attempts(Path(run.run_dir))
    summary = log.summary()
    log_url = f"{log.store.url}/{LOG_PREFIX}"
    hint = "Put it back, or train the recipe again under another --run-id."
    if remains is not None and remains[0] > summary.attempt:
        attempt, found = remains
        ends = f"ends with attempt {summary.attempt}" if summary.attempt else "is missing or empty"
        return f"{log_url} {ends}, but {found} is of attempt {attempt}: the log of commits was moved or deleted. {hint}"
    for ended in attempts:
        if (lost := _lost_end(ended, summary)) is not None:
            path = attempt_path(Path(run.run_dir), ended.attempt)
            return f"{log_url} has lost its last entries: {path} says that {lost}, and the log does not. {hint}"
    return None


def _lost_end(attempt: Attempt, summary: LogSummary) -> str | None:
    """Return what the record of an ended attempt states and the log lacks."""
    last = summary.last_steps.get(attempt.attempt, attempt.start_step)
    if attempt.end_step is not None and attempt.end_step > last:
        return f"attempt {attempt.attempt} committed step {attempt.end_step}"
    if attempt.outcome == "succeeded" and attempt.attempt == summary.attempt and summary.finished is None:
        return f"attempt {attempt.attempt} finished the run"
    return None


def _remains(run: Run, log: CommitLog) -> Iterator[tuple[int, str]]:
    """Yield (attempt, a file that it left)."""
    yield from _remains_here(run)
    # An attempt goes on from the newest commit, so what it left is behind that.
    commits = log.commits()
    for item in log.store.list(CHECKPOINT_PREFIX, checkpoints_from(commits[-1].step) if commits else ""):
        folder = item.key.rpartition("/")[0]
        if (checkpoint := parse_checkpoint_folder(folder)) is not None:
            _, attempt = checkpoint
            yield attempt, f"{log.store.url}/{folder}"


def _remains_here(run: Run) -> Iterator[tuple[int, str]]:
    """Yield those in the run's folder."""
    for pattern in ("attempts/attempt-*.json", "metrics/attempt-*"):
        for path in Path(run.run_dir).glob(pattern):
            if (number := path.stem.rpartition("-")[2]).isdecimal():
                yield int(number), str(path)
