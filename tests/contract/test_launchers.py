"""What every launcher keeps: on this machine, a real Slurm, a stand-in of Kubernetes and a real Ray (`engines`)."""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from assay.base.errors import ConfigError
from assay.launchers.launches import kill, state_of, stop, waiting_words
from assay.records.launch import Launch, LaunchKind
from assay.records.run import Run
from assay.store.home import Home
from assay.store.launches import saved_launches
from assay.training.audit import audit_run
from engines.engine import KINDS, Engine, StartedRun, engines_with, wait_until
from engines.kubernetes import Kubernetes
from engines.local import Background
from engines.ray import Ray
from engines.slurm import Slurm
from kubernetes_cluster.cluster import missing_part
from kubernetes_run import cluster_with_assay

pytestmark = pytest.mark.timeout(900)
RECIPE = {"trainer__epochs": 2, "trainer__commit_every": 2}
STEP_S = 0.4
LIMITS_S = {"follower": 5.0, "leader": 15.0}
"""Seconds until the next commit after the death of a node, on a quiet machine."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, run_here) -> str:
    """The weights with which a run ends when nothing happens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_HOME", str(tmp_path_factory.mktemp("undisturbed")))
        return run_here(**RECIPE)[1].finished().weights_digest


@pytest.fixture
def kubernetes(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, requires
) -> Iterator[Kubernetes]:
    missing = missing_part()
    requires("netns", missing is None, missing or "")
    shared, folder = tmp_path_factory.getbasetemp(), tmp_path / "cluster"
    folder.mkdir()
    with cluster_with_assay(folder, shared, monkeypatch, num_nodes=3, allocatable={"pods": "1"}) as cluster:
        yield Kubernetes(cluster, shared)


@pytest.fixture
def engine(request: pytest.FixtureRequest, new_tiny_run: object, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """`new_tiny_run` first: it says where the home is."""
    if request.param == "background":
        engine: Engine = Background()
    elif request.param == "slurm":
        cluster = request.getfixturevalue("slurm")
        request.addfinalizer(cluster.undrain)
        engine = Slurm(cluster)
    elif request.param == "kubernetes":
        engine = request.getfixturevalue("kubernetes")
    else:
        cluster = request.getfixturevalue("ray_cluster")
        for name, value in cluster.environment.items():
            monkeypatch.setenv(name, value)
        engine = Ray(cluster)
    return engine


def on(kinds: list[LaunchKind], *, soak: tuple[LaunchKind, ...] = ()) -> pytest.MarkDecorator:
    """Parametrise a test by engines; `soak`: on which it is rare."""
    slow, rare = pytest.mark.slow, pytest.mark.soak
    return pytest.mark.parametrize(
        "engine", [pytest.param(kind, marks=[slow, rare] if kind in soak else slow) for kind in kinds], indirect=True
    )


@pytest.fixture
def start(engine: Engine, new_tiny_run) -> Iterator[Callable[..., StartedRun]]:
    """Start a run on two nodes, with steps so long that there is time for something to happen; killed at the end."""
    runs: list[StartedRun] = []

    def start(*options: str, nodes: int = 2, step_s: float = STEP_S) -> StartedRun:
        run = new_tiny_run(**RECIPE)
        faults = [f"{{type: slow, attempt: {n}, step: 1, extra_s: {step_s}}}" for n in (1, 2)]
        (plan := Path(run.run_dir, "slow.yaml")).write_text(f"faults: [{', '.join(faults)}]")
        launcher = engine.launcher(nodes=nodes, options=(f"--faults={plan}", *options))
        runs.append(StartedRun(run, launcher.start(run, world_size=nodes)))
        return runs[-1]

    yield start
    for started in runs:
        kill(started.launch)
        started.wait_for_end()
        print(*engine.output(started).splitlines()[-60:], sep="\n  ")


def assert_as_if_nothing_had_happened(engine: Engine, started: StartedRun, digest: str) -> None:
    started.wait_for_end()
    finished = started.log.finished()
    assert finished is not None, engine.output(started)
    assert finished.weights_digest == digest
    assert audit_run(started.run, started.log).verdict == "pass"
    engine.assert_ended_well(started)


def assay(*arguments: str) -> str:
    """What the command prints, in a process of its own."""
    command = [sys.executable, "-m", "assay", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@on(engines_with("it is stopped, and started again"))
def test_a_run_told_to_stop_commits_and_started_again_ends_with_the_undisturbed_weights(
    engine: Engine, start, undisturbed: str
) -> None:
    started = start()
    first, run_id = started.launch, started.run.run_id
    assert state_of(first) in ("queued", "running")
    wait_until(lambda: started.step() >= 2, "a commit")
    assert "asked to commit and stop" in assay("train", "stop", run_id)  # anybody may, who has the record
    started.wait_for_end()
    assert "nothing to stop" in assay("train", "stop", run_id)
    stop(first)  # what has ended stays so
    assert started.log.finished() is None

    started.launch = engine.launcher().start(started.run, world_size=1)
    assert_as_if_nothing_had_happened(engine, started, undisturbed)
    assert state_of(first) == "ended", "a later launch, also of the same name, is another one"
    assert saved_launches(started.run) == [first, started.launch]
    assert [attempt.outcome for attempt in started.attempts()] == ["preempted", "succeeded"]
    assert started.world_sizes() == [2, 1]
    with Home.from_environment().open_ledger() as ledger:
        assert ledger.attempts(run_id) == started.attempts()


def lose(engine: Engine, start, role: str, capsys: pytest.CaptureFixture[str]) -> StartedRun:
    """A run that has lost a node, and has committed without it."""
    started = start()
    wait_until(lambda: started.step() >= 2, "commits")
    leader, load = engine.leader(started), max(1.0, os.getloadavg()[0])
    lost_s = time.monotonic()
    engine.lose(started, leader if role == "leader" else 1 - leader)
    wait_until(lambda: started.has_committed(2), "a commit without it")
    elapsed_s = time.monotonic() - lost_s
    with capsys.disabled():
        print(f"\n{role} lost: the next commit {elapsed_s:.1f} s later (load {load:.1f}, a step {STEP_S} s)")
    assert elapsed_s < LIMITS_S[role] * load
    assert started.world_sizes()[:2] == [2, 1]
    return started


@on(engines_with("a follower is lost"), soak=("slurm",))
def test_a_run_that_loses_a_follower_goes_on_to_the_undisturbed_weights(
    engine: Engine, start, undisturbed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_as_if_nothing_had_happened(engine, lose(engine, start, "follower", capsys), undisturbed)


@on(engines_with("the leader is lost"))
def test_a_run_that_loses_its_leader_goes_on_to_the_undisturbed_weights(
    engine: Engine, start, undisturbed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_as_if_nothing_had_happened(engine, lose(engine, start, "leader", capsys), undisturbed)


@on(engines_with("it grows"), soak=("slurm",))
def test_a_run_grows_and_shrinks_and_ends_with_the_undisturbed_weights(engine: Engine, start, undisturbed: str) -> None:
    first, *others = engine.SIZES
    started = start("--workers=1..2", nodes=engine.RESIZABLE_NODES, step_s=1.0)
    started.wait_for_workers(first)
    for number in others:
        engine.resize(started, number)
        started.wait_for_workers(number)
    assert_as_if_nothing_had_happened(engine, started, undisturbed)
    assert started.world_sizes()[: len(engine.SIZES)] == [*engine.SIZES]
    for before, after in zip(started.attempts(), started.attempts()[1:], strict=False):
        assert after.start_step == before.end_step, "no step was lost"


@on(engines_with("a node is drained"), soak=("slurm",))
def test_a_node_that_is_drained_is_left_in_time(engine: Engine, start, undisturbed: str) -> None:
    started = start()
    wait_until(lambda: started.step() >= 2, "commits")
    engine.drain(started, 1 - engine.leader(started))
    assert_as_if_nothing_had_happened(engine, started, undisturbed)
    before, after = started.attempts()[:2]
    assert (before.world_size, after.world_size) == (2, 1)
    assert after.start_step == before.end_step > before.start_step, "no step was lost"


@on(engines_with("it is suspended, and resumed"))
def test_a_suspended_run_commits_and_leaves_and_goes_on_when_it_is_resumed(
    engine: Engine, start, undisturbed: str
) -> None:
    started = start()
    wait_until(lambda: started.step() >= 2, "commits")
    engine.suspend(started)
    assert started.log.finished() is None
    assert state_of(started.launch) == "queued"
    assert not waiting_words(started.launch).endswith((": ", "None"))
    engine.resume(started)
    assert_as_if_nothing_had_happened(engine, started, undisturbed)
    before, after = started.attempts()[:2]
    assert before.outcome == "preempted"
    assert after.start_step == before.end_step > before.start_step, "no step was lost"


@on(engines_with("a second command starts it"))
def test_of_two_commands_at_once_one_starts_the_run_and_a_later_one_is_refused(
    engine: Engine, new_tiny_run: Callable[..., Run]
) -> None:
    run = new_tiny_run(**RECIPE)

    def park(_: int) -> Launch | ConfigError:
        try:
            return engine.park(run)
        except ConfigError as error:
            return error

    with ThreadPoolExecutor() as pool:
        results = list(pool.map(park, range(2)))
    [launch] = saved_launches(run)
    try:
        assert launch in results
        assert engine.num_jobs(run) == 1
        refused = [str(result) for result in (*results, park(2)) if isinstance(result, ConfigError)]
        assert len(refused) == 2
        assert all(f"run {run.run_id} is being trained by {launch.where()}" in text for text in refused), refused
    finally:
        kill(launch)
    wait_until(lambda: state_of(launch) == "ended", "its end")
    assert engine.num_jobs(run) == 0


@on([kind for kind in KINDS if kind != "background"])  # there, nothing begins before it is on record
def test_a_launch_whose_record_was_not_written_is_found_again(engine: Engine, new_tiny_run: Callable[..., Run]) -> None:
    run = new_tiny_run(**RECIPE)
    launch = engine.park(run)
    Path(run.run_dir, "launches", "0001.json").unlink()  # as if the command had been killed
    again = engine.park(run)
    kill(again)
    assert (again.job, again.process) == (launch.job, launch.process)


@on(engines_with("a run of its name in another folder is started"))
def test_a_name_that_another_run_has_is_refused(
    engine: Engine, new_tiny_run: Callable[..., Run], tmp_path: Path
) -> None:
    run = new_tiny_run(**RECIPE)
    folder = tmp_path / "elsewhere" / run.run_id
    folder.mkdir(parents=True)
    namesake = run.model_copy(update={"run_dir": str(folder), "created_s": run.created_s + 1})
    launch = engine.park(run)
    with pytest.raises(ConfigError, match=r"choose another --run-id|Choose another --run-id"):
        engine.park(namesake)
    kill(launch)
    assert not saved_launches(namesake)


@on([*KINDS])
def test_no_listing_holds_a_secret(engine: Engine, start, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = secrets.token_hex(16)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    started = start(nodes=1)
    engine.leader(started)
    shown = [engine.listings(started), engine.output(started)]
    shown += [file.read_text(errors="replace") for file in Path(started.run.run_dir).rglob("*") if file.is_file()]
    assert started.run.run_id in shown[0]
    assert not [text for text in shown if secret in text]
