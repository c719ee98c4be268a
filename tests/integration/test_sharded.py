"""Weights sharded over the ranks (FSDP2): the same numbers as replicated, and commits that go both ways."""

import pytest

from assay.base.clock import SystemClock
from assay.elastic.faults import FaultPlan
from assay.elastic.supervisor import RestartPolicy, Supervisor
from assay.store.commit_log import CommitLog
from assay.store.objects import open_store
from assay.training.audit import audit_run
from variants import soaked


@pytest.mark.parametrize("world_size", [3, 7, *soaked(1, 2, 4, 5, 6, 8)])
@pytest.mark.slow
def test_sharded_weights_end_with_the_digest_of_replicated_ones(world_size, new_tiny_run, undisturbed) -> None:
    run = new_tiny_run()
    log = CommitLog(open_store(run.store_url))
    policy = RestartPolicy(parallel=("fsdp2",))
    Supervisor(run, log, policy=policy, observers=[], clock=SystemClock()).run(world_size)
    assert log.finished().weights_digest == undisturbed


@pytest.mark.slow
def test_lanes_of_several_micro_batches_end_with_the_digest_of_replicated_weights(new_tiny_run) -> None:
    digests = set()
    for world_size, parallel in ((1, "ddp"), (2, "fsdp2"), (4, "fsdp2"), (2, "ddp")):
        run = new_tiny_run(loader__max_micro_batch_tokens=60, trainer__spot_check_every=5)
        log = CommitLog(open_store(run.store_url))
        policy = RestartPolicy(parallel=(parallel,))
        Supervisor(run, log, policy=policy, observers=[], clock=SystemClock()).run(world_size)
        assert all(commit.is_verified for commit in log.commits())
        digests.add(log.finished().weights_digest)
    assert len(digests) == 1


@pytest.mark.slow
def test_commits_go_between_sharded_and_replicated_weights(new_tiny_run, undisturbed) -> None:
    run = new_tiny_run()
    log = CommitLog(open_store(run.store_url))
    kills = [{"type": "kill", "attempt": attempt, "step": step} for attempt, step in ((1, 7), (2, 12), (3, 17))]
    policy = RestartPolicy(
        world_sizes=(4, 2, 2, 1),
        parallel=("fsdp2", "ddp", "fsdp2", "ddp"),
        faults=FaultPlan.model_validate({"faults": kills}),
    )
    Supervisor(run, log, policy=policy, observers=[], clock=SystemClock()).run(1)
    assert [commit.world_size for commit in log.commits()][-1] == 1
    assert log.finished().weights_digest == undisturbed
    assert audit_run(run, log).verdict == "pass"
