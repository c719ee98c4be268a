import pytest

from assay.training.audit import audit_run
from variants import soaked


def digest_of(log) -> str:
    finished = log.finished()
    assert finished is not None
    return finished.weights_digest


@pytest.mark.slow
@pytest.mark.parametrize("world_sizes", [(1, 7, 10, 16), *soaked(range(1, 17))])
def test_every_world_size_ends_with_the_same_weights_and_a_clean_audit(run_it, world_sizes) -> None:
    """Dropout and clipping are on."""
    digests = {}
    for world_size in world_sizes:
        run, log, _ = run_it(
            world_sizes=(world_size,), loader__lanes=16, loader__global_batch_size=32, trainer__epochs=1
        )
        digests[world_size] = digest_of(log)
        assert audit_run(run, log).verdict == "pass"
    assert len(set(digests.values())) == 1, digests


@pytest.mark.slow
def test_plain_all_reduce_gives_other_weights_at_another_world_size(run_it) -> None:
    digests = {digest_of(run_it(world_sizes=(size,), trainer__gradient_sum="all_reduce")[1]) for size in (1, 2, 8)}
    assert len(digests) > 1


def test_a_run_killed_and_resized_1_3_5_2_ends_as_if_nothing_had_happened(run_it) -> None:
    _, undisturbed, _ = run_it(trainer__epochs=2)
    run, log, attempts = run_it(world_sizes=(1, 3, 5, 2), kills=[(1, 0), (2, 1), (2, 3)], trainer__epochs=2)
    assert [attempt.world_size for attempt in attempts] == [1, 3, 5, 2]
    assert [attempt.outcome for attempt in attempts] == ["killed", "killed", "killed", "succeeded"]
    assert digest_of(log) == digest_of(undisturbed)
    report = audit_run(run, log)
    assert (report.verdict, report.rows_trained) == ("pass", report.rows_expected)


@pytest.mark.slow
def test_32_processes_train_the_tiny_model_and_the_audit_is_clean(run_it) -> None:
    run, log, _ = run_it(
        world_sizes=(32,),
        loader__lanes=32,
        loader__global_batch_size=64,
        trainer__max_steps=4,
        trainer__commit_every=4,
    )
    assert log.finished() is not None
    assert audit_run(run, log).verdict == "incomplete" or audit_run(run, log).verdict == "pass"
