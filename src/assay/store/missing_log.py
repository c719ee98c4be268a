"""Whether a run's log of commits still tells of every attempt that there was.

An attempt begins with an entry in the log, and only then leaves anything else. So an attempt that is known by
its own record, by its metrics or by a checkpoint, and of which the log knows nothing, means that somebody moved
or emptied the log. To go on would begin anew under numbers that were used: over old metrics and checkpoints,
and at the meeting place of ranks that are long gone, where new ones wait in vain.

The other way round, a log whose commits are all of attempts that left nothing in the run's folder is another
run's: two were given one `--store`, and the second would go on with the weights of the first.
"""

from collections.abc import Iterator
from pathlib import Path

from assay.base.errors import DamagedDataError
from assay.records.commit import Commit
from assay.records.run import Run
from assay.store.commit_log import CHECKPOINT_PREFIX, LOG_PREFIX, CommitLog, attempt_of


def refuse_missing_log(run: Run, log: CommitLog) -> None:
    """Raise `DamagedDataError` where the log has lost what it knew, or is another run's; a run that never began
    has lost nothing."""
    if (problem := missing_log(run, log)) is not None:
        raise DamagedDataError(f"run '{run.run_id}' cannot go on: {problem}")
    made = {each.attempt for each in log.entries() if isinstance(each, Commit) and not each.is_inherited}
    if made and run.store_url != run.run_dir and made.isdisjoint(number for number, _ in _remains_here(run)):
        raise DamagedDataError(
            f"run '{run.run_id}' cannot go on: {run.store_url}/{LOG_PREFIX} has commits, and none is of an "
            f"attempt that {run.run_dir} knows. They are of another run with the same --store: give each its "
            "own. Or the run's folder lost its attempts: put them back."
        )


def missing_log(run: Run, log: CommitLog) -> str | None:
    """What is missing, what shows it, and the cure; None where the log knows every attempt."""
    # The remains first: an attempt that begins meanwhile is in the log before it leaves any.
    remains = max(_remains(run, log), default=None)
    known = max((entry.attempt for entry in log.entries()), default=0)
    if remains is None or remains[0] <= known:
        return None
    attempt, found = remains
    return (
        f"{run.store_url}/{LOG_PREFIX} {f'ends with attempt {known}' if known else 'is missing or empty'}, but "
        f"{found} is of attempt {attempt}: the log of commits was moved or deleted. Put it back, or train the "
        "recipe again under another --run-id."
    )


def _remains(run: Run, log: CommitLog) -> Iterator[tuple[int, str]]:
    """(attempt, what it left behind)."""
    yield from _remains_here(run)
    for item in log.store.list(CHECKPOINT_PREFIX):
        folder = item.key.rpartition("/")[0]
        if (attempt := attempt_of(folder)) is not None:
            yield attempt, f"{run.store_url}/{folder}"


def _remains_here(run: Run) -> Iterator[tuple[int, str]]:
    """Those in the run's folder."""
    for pattern in ("attempts/attempt-*.json", "metrics/attempt-*"):
        for path in Path(run.run_dir).glob(pattern):
            if (number := path.stem.rpartition("-")[2]).isdecimal():
                yield int(number), str(path)
