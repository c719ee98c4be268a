"""Retains checkpoints of jobs that something depends on.

| holder | until |
|---|---|
| a permission | it is revoked |
| an eval run, for its model and judges | the run or its eval is deleted |
| inference, direct or in a batch | for ever |

The hold is written first, then what depends on it. An interruption in between leaves a checkpoint that could be
deleted.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from assay.base.clock import Clock
from assay.base.errors import ConfigError, DataError
from assay.records.log_summary import LogSummary
from assay.serving.api_error import checkpoint_gone
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.logs.retained_checkpoints import RetainedCheckpoints
from assay.store.objects import ObjectStore, open_store
from assay.store.retry_policy import RetryPolicy

INFERENCE = "answers"
"""The holder of all checkpoints that were used for inference."""
StoreOfRun = Callable[[str], ObjectStore]


def stores_of(home: Home, retry_policy: RetryPolicy | None = None) -> StoreOfRun:
    """Return a function from run id to the run's store."""
    return lambda run_id: open_store(home.run(run_id).store_url, retry_policy)


class CheckpointRetention:
    """Holds on checkpoints of all runs."""

    def __init__(self, store_of: StoreOfRun | None, clock: Clock) -> None:
        """`store_of`: run id -> the run's store; None if there are no runs."""
        self._store_of = store_of
        self._clock = clock
        self._retained_for_inference: set[tuple[str, int]] = set()
        """Already held, so that repeated inference does not read the store again."""

    def of(self, name: str, run_id: str | None, step: int | None) -> "Weights":
        """Return the weights of a model; `run_id` and `step` are set if they belong to a run."""
        return Weights(self, name, run_id, step)

    def retain(self, run_id: str, step: int, holder: str) -> bool:
        """Retain a checkpoint; return False if it is gone or about to be deleted."""
        if self._store_of is None or (holder == INFERENCE and (run_id, step) in self._retained_for_inference):
            return True
        with suppress(ConfigError, DataError):  # the run is missing or damaged
            store = self._store_of(run_id)
            summary = CommitLog(store).summary()
            folder = _folder(summary, step)
            if folder is None:
                return False
            # A finished run deletes no checkpoints.
            stays = summary.finished is not None or RetainedCheckpoints(store, self._clock).keep(folder, holder)
            if stays and holder == INFERENCE:
                self._retained_for_inference.add((run_id, step))
            return stays
        return False

    def release(self, run_id: str, step: int, holder: str) -> None:
        """Release a hold; no-op without one."""
        if self._store_of is None:
            return
        with suppress(ConfigError, DataError):
            store = self._store_of(run_id)
            if (folder := _folder(CommitLog(store).summary(), step)) is not None:
                RetainedCheckpoints(store, self._clock).release(folder, holder)


class Weights(NamedTuple):
    """The weights of a model."""

    holder: CheckpointRetention
    name: str
    run_id: str | None
    step: int | None
    """Weights without a run are never deleted."""

    def retain(self, holder: str, *, param: str = "model") -> None:
        """Retain the weights. Raises `ApiError` if they are gone."""
        if self.run_id is None or self.step is None or self.holder.retain(self.run_id, self.step, holder):
            return
        raise checkpoint_gone(self.name, param=param)

    def release(self, holder: str) -> None:
        if self.run_id is not None and self.step is not None:
            self.holder.release(self.run_id, self.step, holder)


def _folder(summary: LogSummary, step: int) -> str | None:
    """Return the folder of a run's commit, or None."""
    return next((commit.folder for commit in reversed(summary.commits) if commit.step == step), None)
