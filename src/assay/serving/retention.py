"""Keeps checkpoints of jobs from their runs' retention, for whoever relies on them.

| who | until |
|---|---|
| a permission | it is revoked |
| a run of an eval: what answers, and what judges | it is deleted, or its eval |
| whoever is answered, at once or in a batch | for good |

The mark comes first, then what rests on it. Who is cut off in between leaves the mark, and a checkpoint stays
that could go.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from assay.base.clock import Clock
from assay.base.errors import ConfigError, DataError
from assay.records.log_summary import LogSummary
from assay.serving.refusal import checkpoint_gone
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.logs.kept_checkpoints import KeptCheckpoints
from assay.store.objects import ObjectStore, open_store
from assay.store.patience import Patience

ANSWERS = "answers"
"""All who are answered are one keeper."""
StoreOfRun = Callable[[str], ObjectStore]


def stores_of(home: Home, patience: Patience | None = None) -> StoreOfRun:
    """The stores of a home's runs."""
    return lambda run_id: open_store(home.run(run_id).store_url, patience)


class CheckpointKeeper:
    """Keeps and releases those of all runs."""

    def __init__(self, store_of: StoreOfRun | None, clock: Clock) -> None:
        """`store_of`: a run's own store; None where there are no runs, and nothing to be kept."""
        self._store_of = store_of
        self._clock = clock
        self._answering: set[tuple[str, int]] = set()
        """Who answers is asked again and again; it is looked at once."""

    def of(self, name: str, run_id: str | None, step: int | None) -> "Weights":
        """Those of a model; `run_id` and `step` where it is a run's."""
        return Weights(self, name, run_id, step)

    def keep(self, run_id: str, step: int, keeper: str) -> bool:
        """Have a run's checkpoint stay for somebody; whether it does: not where it is gone, or about to go."""
        if self._store_of is None or (keeper == ANSWERS and (run_id, step) in self._answering):
            return True
        with suppress(ConfigError, DataError):  # no such run, or a damaged one
            store = self._store_of(run_id)
            summary = CommitLog(store).summary()
            folder = _folder(summary, step)
            if folder is None:
                return False
            # Once the run has finished, nothing is retired any more.
            stays = summary.finished is not None or KeptCheckpoints(store, self._clock).keep(folder, keeper)
            if stays and keeper == ANSWERS:
                self._answering.add((run_id, step))
            return stays
        return False

    def release(self, run_id: str, step: int, keeper: str) -> None:
        """Let it go, as far as he is concerned; nothing where it is gone, or was not kept."""
        if self._store_of is None:
            return
        with suppress(ConfigError, DataError):
            store = self._store_of(run_id)
            if (folder := _folder(CommitLog(store).summary(), step)) is not None:
                KeptCheckpoints(store, self._clock).release(folder, keeper)


class Weights(NamedTuple):
    """A model's, on which somebody is about to rely."""

    keeper: CheckpointKeeper
    name: str
    run_id: str | None
    step: int | None
    """Those of no run are kept by nobody: they stay."""

    def keep(self, who: str, *, param: str = "model") -> None:
        """Have them stay for somebody; `RefusedError` where they are gone."""
        if self.run_id is None or self.step is None or self.keeper.keep(self.run_id, self.step, who):
            return
        raise checkpoint_gone(self.name, param=param)

    def release(self, who: str) -> None:
        """Let them go, as far as he is concerned."""
        if self.run_id is not None and self.step is not None:
            self.keeper.release(self.run_id, self.step, who)


def _folder(summary: LogSummary, step: int) -> str | None:
    """Where the run's commit of a step lies; None where it has none."""
    return next((commit.folder for commit in reversed(summary.commits) if commit.step == step), None)
