"""References to commits of other runs in a recipe, found by run id and step; imports no torch.

Without a step, the last commit of a finished run is used: the last commit of a running one would change.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from assay.base.errors import ConfigError, DamagedDataError
from assay.records.commit import Commit
from assay.records.run import Run
from assay.store.commit_log import CommitLog, first_problem
from assay.store.home import Home
from assay.store.objects import ObjectStore, open_store

_PLANNED: ContextVar[Mapping[str, Run]] = ContextVar("planned", default={})  # noqa: B039 (nobody writes to it)


@contextmanager
def to_come(planned: Mapping[str, Run]) -> Iterator[None]:
    """Allow recipes within this context to reference planned runs by their ids."""
    token = _PLANNED.set(planned)
    try:
        yield
    finally:
        _PLANNED.reset(token)


class NamedCommit(NamedTuple):
    """A commit with its run and store."""

    run: Run
    commit: Commit
    store: ObjectStore


class CommitName(NamedTuple):
    """A reference to a commit in a recipe."""

    run: str
    step: int | None = None
    """None: the last one."""

    def __str__(self) -> str:
        return self.run if self.step is None else f"{self.run}@{self.step}"

    def run_of(self, key: str) -> Run:
        """Return the run, or the planned run."""
        return _PLANNED.get().get(self.run) or self.found(key).run

    def found(self, key: str) -> NamedCommit:
        """Return the commit; raises `ConfigError` if there is none. `key` is the reference's recipe key."""
        home = Home.from_environment()
        if not home.has_run(self.run):
            raise ConfigError(
                f"{key}.run={self.run}: no such run in {home.folder}. 'assay runs' lists those that there are."
            )
        run = home.run(self.run)
        log = CommitLog(open_store(run.store_url))
        commits = log.commits()
        steps = ", ".join(f"{commit.step:,}" for commit in commits) or "none yet"
        if self.step is None and log.finished() is None:
            raise ConfigError(
                f"{key}.run={self.run}: it is not finished, so it has no last commit yet. Name one: "
                f"{key}.step, of {steps}."
            )
        found = [commit for commit in commits if self.step in (None, commit.step)]
        if not found:
            raise ConfigError(f"{key}.step={self.step}: run '{self.run}' has no commit of it, but of {steps}.")
        return NamedCommit(run, found[-1], log.store)

    def checked(self, key: str) -> NamedCommit:
        """Return the commit after checking each of its files."""
        named = self.found(key)
        if (problem := first_problem(named.store, named.commit)) is not None:
            raise DamagedDataError(
                f"{key}: commit at step {named.commit.step} of '{self.run}': {problem}. Name another one."
            )
        return named
