"""What a real run does with damaged commits, retention, SIGTERM and a store that is not there."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from assay.base.clock import SystemClock
from assay.base.errors import AssayError, ConfigError, StoreFullError
from assay.elastic.supervisor import RestartPolicy, Supervisor
from assay.evals.commit_model import load_committed
from assay.records.commit import Commit, CommitQuarantined
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.objects import open_store
from assay.training.audit import audit_run


class At:
    """Calls a function once some commits are in the log."""

    def __init__(self, log: CommitLog, num_commits: int, action) -> None:
        self._log, self._num_commits, self._action = log, num_commits, action

    def attempt_began(self, attempt, pids) -> None:
        self.pids = pids

    def tick(self, attempt) -> None:
        if self._action and len(self._log.commits()) >= self._num_commits:
            action, self._action = self._action, None
            action(self.pids)

    def attempt_ended(self, attempt) -> None:
        pass


def supervise(run, observer=None, world_size: int = 1):
    supervisor = Supervisor(
        run,
        CommitLog(open_store(run.store_url)),
        policy=RestartPolicy(),
        observers=[observer] if observer else [],
        clock=SystemClock(),
    )
    return supervisor.run(world_size)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.slow
def test_a_flipped_byte_in_the_newest_commit_is_found_and_the_one_before_is_used(
    new_tiny_run, undisturbed: str
) -> None:
    run = new_tiny_run()
    log = CommitLog(open_store(run.store_url))

    def damage_and_kill(pids) -> None:
        newest = log.commits()[-1]
        os.kill(pids[0], signal.SIGKILL)
        damage(max((Path(run.run_dir) / newest.folder).glob("*.distcp")))

    last = supervise(run, At(log, 2, damage_and_kill))
    quarantined = [entry for entry in log.entries() if isinstance(entry, CommitQuarantined)]
    assert len(quarantined) == 1
    assert last.start_step < quarantined[0].step
    assert log.finished().weights_digest == undisturbed
    assert audit_run(run, log).verdict == "pass"


def test_sigterm_commits_and_leaves_and_a_resume_ends_as_if_nothing_had_happened(
    new_tiny_run, undisturbed: str
) -> None:
    run = new_tiny_run()
    log = CommitLog(open_store(run.store_url))
    first = supervise(run, At(log, 1, lambda pids: os.kill(os.getpid(), signal.SIGTERM)), world_size=2)
    assert first.outcome == "preempted"
    assert log.finished() is None
    second = supervise(run, world_size=1)
    assert second.start_step == first.end_step
    assert log.finished().weights_digest == undisturbed


@pytest.mark.slow
def test_only_the_commits_that_the_recipe_keeps_stay_and_all_receipts_do(run_it) -> None:
    run, log, _ = run_it(retention__keep_last=1, retention__keep_best=0, trainer__commit_every=2)
    with_weights = list(Path(run.run_dir).glob("checkpoints/*/*.distcp"))
    with_receipts = list(Path(run.run_dir).glob("checkpoints/*/receipts.npz"))
    assert {path.parent.name for path in with_weights} == {Path(log.commits()[-1].folder).name}
    assert len(with_receipts) > 5
    assert audit_run(run, log).verdict == "pass"
    retired = next(entry for entry in log.entries() if isinstance(entry, Commit))
    with pytest.raises(ConfigError, match=r"was deleted meanwhile for later ones.* last commit is of step 20"):
        load_committed(run, retired, log.store)
    assert load_committed(run, log.commits()[-1], log.store) is not None


@pytest.mark.slow
def test_a_full_disk_is_one_clear_error_and_what_was_committed_stays(new_tiny_run, tmp_path: Path, requires) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(small)])
    requires("mount", mounted.returncode == 0, "a small file system can only be mounted by root, outside sandboxes")
    try:
        run = new_tiny_run(store_url=str(small), retention__keep_last=50)
        with pytest.raises(StoreFullError, match=r"No space left on device.*free some space.*--resume"):
            supervise(run)
        assert len(saved_attempts(Path(run.run_dir))) == 1, "a full disk is not tried again"
        log = CommitLog(open_store(str(small)))
        assert log.commits()
        assert log.last_intact_commit() == log.commits()[-1]
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_an_unreachable_store_is_one_clear_error(new_tiny_run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "ASSAY_STORE_RETRY_S": "1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    run = new_tiny_run(store_url="s3://bucket/run")
    with pytest.raises(AssayError, match=r"s3://bucket/run.*AWS_ENDPOINT_URL"):
        supervise(run)


@pytest.mark.slow
def test_commits_live_in_s3_as_they_do_in_a_folder(new_tiny_run, run_it, s3_url: str) -> None:
    _, undisturbed, _ = run_it()
    run = new_tiny_run(store_url=s3_url)
    log = CommitLog(open_store(run.store_url))
    supervise(run, At(log, 2, lambda pids: os.kill(pids[1], signal.SIGKILL)), world_size=2)
    assert log.finished().weights_digest == undisturbed.finished().weights_digest
    assert audit_run(run, log).verdict == "pass"
