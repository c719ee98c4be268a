"""A real Slurm preempts our job, requeues it, and it ends as if nothing had happened."""

from pathlib import Path

import pytest

from assay.launchers.slurm.launcher import SlurmConfig, SlurmLauncher
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.training.audit import audit_run
from slurm_cluster import SlurmCluster, wait_until

EPOCHS = 6


@pytest.mark.slow
def test_a_preempted_job_commits_is_requeued_and_ends_with_the_undisturbed_weights(
    slurm: SlurmCluster, new_tiny_run, run_it
) -> None:
    _, undisturbed, _ = run_it(trainer__epochs=EPOCHS)
    run = new_tiny_run(trainer__epochs=EPOCHS)
    log = CommitLog(open_store(run.store_url))

    launched = SlurmLauncher(Home.from_environment(), SlurmConfig(nodes=2, partition="low")).start(run, world_size=2)
    wait_until(log.commits, "a first commit")
    other = slurm.preempt(seconds=0.5)
    wait_until(lambda: slurm.state(other) == "COMPLETED", "the job of a higher priority")
    assert log.finished() is None
    wait_until(lambda: slurm.state(launched.job) not in ("PENDING", "RUNNING", "COMPLETING"), "our job")

    assert slurm.state(launched.job) == "COMPLETED", Path(launched.log).read_text()
    assert log.finished().weights_digest == undisturbed.finished().weights_digest
    assert audit_run(run, log).verdict == "pass"
    with Home.from_environment().open_ledger() as ledger:
        first, second = ledger.attempts(run.run_id)
    assert (first.outcome, second.outcome) == ("preempted", "succeeded")
    assert 0 < first.end_step == second.start_step < second.end_step
