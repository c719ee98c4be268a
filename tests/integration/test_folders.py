"""A run whose folder is moved while it trains, and one whose store is on another file system."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from assay.base.clock import SystemClock
from assay.base.errors import StoreError
from assay.elastic.supervisor import RestartPolicy, Supervisor
from assay.records.run import Attempt, Run
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.training.audit import audit_run


class MoveAfter:
    """Moves a folder once there are some commits."""

    def __init__(self, log: CommitLog, num_commits: int, source: Path, target: Path) -> None:
        self._log, self._num_commits = log, num_commits
        self._source, self._target = source, target

    def attempt_began(self, attempt: Attempt, pids: Sequence[int]) -> None: ...

    def tick(self, attempt: Attempt) -> None:
        if self._source.is_dir() and len(self._log.commits()) >= self._num_commits:
            self._source.rename(self._target)

    def attempt_ended(self, attempt: Attempt) -> None: ...


def train(run: Run, *observers: MoveAfter) -> CommitLog:
    log = CommitLog(open_store(run.store_url))
    Supervisor(run, log, policy=RestartPolicy(), observers=observers, clock=SystemClock()).run(1)
    return log


@pytest.mark.slow
def test_a_run_that_is_moved_while_it_trains_writes_no_more_in_its_old_place_and_goes_on_in_the_new_one(
    new_tiny_run: Callable[..., Run], tmp_path: Path, undisturbed: str
) -> None:
    run = new_tiny_run()
    home, moved = tmp_path / "home", tmp_path / "moved"
    mover = MoveAfter(CommitLog(open_store(run.store_url)), 1, home, moved)
    by_run, by_store = r"during training\..*they are lost", r"while it was written to\..*if it does"
    with pytest.raises(StoreError, match=rf"moved, deleted or unmounted ({by_run}|{by_store})"):
        train(run, mover)
    left = [path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file()]
    assert not [name for name in left if "/log/" in name or "/checkpoints/" in name or "/attempts/" in name]
    found = Home.at(moved).run(run.run_id)
    log = train(found)
    assert log.finished().weights_digest == undisturbed
    assert audit_run(found, log).verdict == "pass"


@pytest.fixture
def elsewhere(tmp_path: Path, requires: Callable[..., None]) -> Iterator[Path]:
    """A folder on another file system than the run's."""
    shm = Path("/dev/shm")
    other = shm.is_dir() and shm.stat().st_dev != tmp_path.stat().st_dev
    requires("another file system", other, "/dev/shm is none here")
    folder = Path(tempfile.mkdtemp(dir=shm))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
def test_a_store_on_another_file_system_also_behind_a_link_is_as_good(
    new_tiny_run: Callable[..., Run], tmp_path: Path, elsewhere: Path, undisturbed: str
) -> None:
    (tmp_path / "link").symlink_to(elsewhere)
    run = new_tiny_run(store_url=str(tmp_path / "link" / "store"))
    log = train(run)
    assert log.finished().weights_digest == undisturbed
    assert audit_run(run, CommitLog(open_store(str(elsewhere / "store")))).verdict == "pass"
