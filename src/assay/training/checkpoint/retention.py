"""Decides which commits are retained: the newest, the newest verified one, the best by metric, and those in use."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from pydantic import PositiveInt

from assay.base.config import FrozenConfig
from assay.records.commit import Commit
from assay.store.commit_log import CommitLog


class RetentionConfig(FrozenConfig):
    """Which checkpoints are kept. Receipts always are."""

    also_called: ClassVar = {"save_total_limit": "keep_last", "keep": "keep_last", "save_top_k": "keep_best"}

    keep_last: PositiveInt = 2
    """At least 2 lets a resume fall back if the newest is damaged."""

    keep_best: int = 1
    """Those with the best evaluation metric, in addition."""


def folders_to_retire(
    commits: Sequence[Commit],
    newest: Commit,
    retention: RetentionConfig,
    *,
    higher_is_better: bool = True,
    awaited: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the folders of earlier `commits` (oldest first) that can be deleted once `newest` is visible.

    `higher_is_better` is the metric's direction. `awaited` are folders that are still needed, e.g. for an evaluation.
    """
    everything = [*commits, newest]
    retained = set(awaited)
    retained |= {commit.folder for commit in everything[-retention.keep_last :]}
    retained |= {commit.folder for commit in everything if commit.is_inherited}  # cannot be made again
    verified = [commit for commit in everything if commit.is_verified]
    retained |= {commit.folder for commit in verified[-1:]}  # the run goes back to it after wrong arithmetic
    measured = sorted(
        ((commit.metric, commit.folder) for commit in everything if commit.metric is not None),
        key=lambda pair: pair[0],
        reverse=higher_is_better,
    )
    retained |= {folder for _, folder in measured[: retention.keep_best]}
    return tuple(commit.folder for commit in commits if commit.folder not in retained)


def commit_and_retire(
    log: CommitLog,
    commit: Commit,
    retention: RetentionConfig,
    *,
    higher_is_better: bool = True,
    awaited: Callable[[Sequence[Commit]], Sequence[str]] = lambda commits: (),
    retire: Callable[[str], bool] = lambda folder: True,
) -> Commit:
    """Append a commit to the log and delete the commits that it makes superfluous; return it as logged.

    `awaited` returns the folders that must not be deleted yet; `retire` is called with each folder to delete
    and returns whether nobody needs it: afterwards nobody can claim it.
    """
    before = log.commits()
    superfluous = folders_to_retire(
        before, commit, retention, higher_is_better=higher_is_better, awaited=awaited(before)
    )
    commit = commit.model_copy(update={"retires": tuple(filter(retire, superfluous))})
    log.append(commit)
    log.sweep_retired(commit)
    return commit
