"""A commit of another run that a recipe asks: found by the run's id, fit to be read; imports no torch.

Without a step it is the last one, of a run that is finished: whose last commit is yet to come says something
else tomorrow.
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
    """Let recipes be checked that name runs which are yet to come, by their ids."""
    token = _PLANNED.set(planned)
    try:
        yield
    finally:
        _PLANNED.reset(token)


class NamedCommit(NamedTuple):
    """Whose it is, and where its files are."""

    run: Run
    commit: Commit
    store: ObjectStore


class CommitName(NamedTuple):
    """As a recipe has it."""

    run: str
    step: int | None = None
    """None: the last one."""

    def __str__(self) -> str:
        return self.run if self.step is None else f"{self.run}@{self.step}"

    def run_of(self, key: str) -> Run:
        """Whose it is, or will be."""
        return _PLANNED.get().get(self.run) or self.found(key).run

    def found(self, key: str) -> NamedCommit:
        """The commit; `key` is where the recipe names it, for the `ConfigError` where there is none."""
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
                f"{key}.run={self.run}: it is not finished, so its last commit is yet to come. Name one: "
                f"{key}.step, of {steps}."
            )
        found = [commit for commit in commits if self.step in (None, commit.step)]
        if not found:
            raise ConfigError(f"{key}.step={self.step}: run '{self.run}' has no commit of it, but of {steps}.")
        return NamedCommit(run, found[-1], log.store)

    def checked(self, key: str) -> NamedCommit:
        """Likewise, each of its files read and found to be what was committed."""
        named = self.found(key)
        if (problem := first_problem(named.store, named.commit)) is not None:
            raise DamagedDataError(
                f"{key}: commit at step {named.commit.step} of '{self.run}': {problem}. Name another one."
            )
        return named
