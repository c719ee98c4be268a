"""Which commits stay: the newest few, the newest verified one, the best few by the recipe's metric, and what
others rely on."""

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
    """Newest commits to keep. At least 2 lets a resume fall back if the newest is damaged."""

    keep_best: int = 1
    """Commits with the best evaluation metric to keep besides."""


def folders_to_retire(
    commits: Sequence[Commit],
    newest: Commit,
    retention: RetentionConfig,
    *,
    higher_is_better: bool = True,
    awaited: Sequence[str] = (),
) -> tuple[str, ...]:
    """Folders that may go once `newest` is visible; `commits` are those before it, oldest first.

    `higher_is_better` is of their metric. `awaited` are folders that somebody else still needs: commits whose
    evaluation is due.
    """
    everything = [*commits, newest]
    retained = set(awaited)
    retained |= {commit.folder for commit in everything[-retention.keep_last :]}
    retained |= {commit.folder for commit in everything if commit.is_inherited}  # nothing makes it again
    verified = [commit for commit in everything if commit.is_verified]
    retained |= {commit.folder for commit in verified[-1:]}  # where a run goes back to after wrong arithmetic
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
    """Make a commit visible, and delete what it makes superfluous; the commit as it is in the log.

    `awaited` says which of the commits' folders must not be retired yet; `retire`, asked of each that would
    be, whether nobody else relies on it: from then on nobody can.
    """
    before = log.commits()
    superfluous = folders_to_retire(
        before, commit, retention, higher_is_better=higher_is_better, awaited=awaited(before)
    )
    commit = commit.model_copy(update={"retires": tuple(filter(retire, superfluous))})
    log.append(commit)
    log.sweep_retired(commit)
    return commit
