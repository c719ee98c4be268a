"""What every launcher must do: this machine in the background, and a real Slurm."""

from collections.abc import Callable

import pytest

from assay.launch.places.background import BackgroundLauncher
from assay.launch.places.launcher import Launcher
from assay.launch.places.slurm import SlurmConfig, SlurmLauncher
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.training.audit import audit_run
from slurm_cluster import wait_until


@pytest.fixture(params=["background", pytest.param("slurm", marks=pytest.mark.slow)])
def new_launcher(request: pytest.FixtureRequest) -> Callable[[], Launcher]:
    if request.param == "background":
        return lambda: BackgroundLauncher(Home.from_environment())
    request.getfixturevalue("slurm")
    return lambda: SlurmLauncher(Home.from_environment(), SlurmConfig())


@pytest.fixture
def launcher(new_launcher: Callable[[], Launcher]) -> Launcher:
    return new_launcher()


def test_a_run_told_to_stop_commits_and_started_again_ends_with_the_undisturbed_weights(
    launcher: Launcher, new_launcher, new_tiny_run, run_it
) -> None:
    _, undisturbed, _ = run_it(trainer__epochs=4)
    run = new_tiny_run(trainer__epochs=4)
    log = CommitLog(open_store(run.store_url))

    first = launcher.start(run, world_size=2)
    assert launcher.state(first) in ("queued", "running")
    assert new_launcher().state(first) in ("queued", "running")  # anybody may ask
    wait_until(log.commits, "a first commit")
    launcher.stop(first)
    wait_until(lambda: launcher.state(first) == "ended", "the run to leave")
    launcher.stop(first)  # what has ended stays so
    assert log.finished() is None
    assert "committed" in first.log.read_text()

    second = launcher.start(run, world_size=1)
    wait_until(lambda: launcher.state(second) == "ended", "the run to end")
    assert log.finished().weights_digest == undisturbed.finished().weights_digest
    assert audit_run(run, log).verdict == "pass"
    with Home.from_environment().open_ledger() as ledger:
        attempts = ledger.attempts(run.run_id)
    assert [attempt.outcome for attempt in attempts] == ["preempted", "succeeded"]
    assert [attempt.world_size for attempt in attempts] == [2, 1]
