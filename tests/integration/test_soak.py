"""Random deaths, at random moments, on a changing number of ranks: a few by default, hundreds in a soak.

The seed is the reproduction of what is done and on how many ranks; how far a process is when it is struck some
milliseconds into a phase also depends on the machine.
"""

import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pytest
import yaml

from assay.base.clock import SystemClock
from assay.elastic.faults import (
    NO_FAULTS,
    DamageKind,
    FaultPlan,
    PhaseOfLoop,
    SignalFault,
    damage_file,
)
from assay.elastic.supervisor import RestartPolicy, Supervisor
from assay.records.commit import CommitQuarantined
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog, first_problem
from assay.store.home import Home
from assay.store.objects import open_store
from assay.training.audit import audit_run
from assay.workflows.run import load_run

pytestmark = pytest.mark.slow

ACROSS_THE_LOOP: tuple[PhaseOfLoop, ...] = (
    "startup", "data", "compute", "communication", "checkpoint", "evaluation",
)  # fmt: skip
"""What every run goes through."""
LONGEST_DELAY_S = 0.05
"""Of a random kill after its phase began: about as long as a small commit takes to be written."""
NUM_STEPS = 20
KILLED_BY_STEP = 15
"""A kill that is planned up to here strikes before the run can end."""
OFTEN = {"trainer__evaluate_every": 5, "trainer__commit_every": 2}


def seeds(short: int, soak: int) -> list:
    """The first few for the default suite, and as many as the soak asks for."""
    return [*range(short), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(short, short + soak))]


def random_plan(
    seed: int,
    *,
    num_steps: int,
    world_sizes: Sequence[int],
    phases: Sequence[PhaseOfLoop] = ACROSS_THE_LOOP,
) -> FaultPlan:
    """One kill in each attempt but the last, of any rank, in or soon after any phase of the loop."""
    rng = random.Random(seed)
    kills = [
        SignalFault(
            type="kill",
            attempt=attempt,
            rank=rng.randrange(world_size),
            step=rng.randint(1, num_steps),
            phase=rng.choice(phases),
            after_s=rng.choice((0.0, rng.uniform(0.0, LONGEST_DELAY_S))),
        )
        for attempt, world_size in enumerate(world_sizes[:-1], start=1)
    ]
    return FaultPlan(faults=tuple(kills))


def changing_sizes(rng: random.Random, num_attempts: int, among: Sequence[int] = range(1, 6)) -> tuple[int, ...]:
    sizes = [rng.choice(among)]
    while len(sizes) < num_attempts:
        sizes.append(rng.choice([size for size in among if size != sizes[-1]]))
    return tuple(sizes)


def random_parallel(rng: random.Random, num_attempts: int) -> tuple:
    return tuple(rng.choice(["ddp", "fsdp2"]) for _ in range(num_attempts))


def log_of(run) -> CommitLog:
    return CommitLog(open_store(run.store_url))


def supervise(run, world_size: int = 1, **policy):
    return Supervisor(
        run, log_of(run), policy=RestartPolicy(max_restarts=20, **policy), observers=[], clock=SystemClock()
    ).run(world_size)


def kill_and_resize(run, sizes: Sequence[int], parallel: tuple, plan: FaultPlan) -> None:
    supervise(run, world_sizes=tuple(sizes), parallel=parallel, faults=plan)
    attempts = saved_attempts(Path(run.run_dir))
    assert (attempts[0].outcome, attempts[-1].outcome) == ("killed", "succeeded"), plan
    assert [attempt.world_size for attempt in attempts] == list(sizes[: len(attempts)])


def assert_all_good_commits_are_as_committed(log: CommitLog) -> None:
    assert [entry for entry in log.entries() if isinstance(entry, CommitQuarantined)] == []
    assert [first_problem(log.store, commit) for commit in log.commits()] == [None] * len(log.commits())


def assert_as_if_nothing_had_happened(run, digest: str) -> None:
    log = log_of(run)
    assert log.finished().weights_digest == digest
    found = audit_run(run, log)
    assert found.verdict == "pass", found.problems
    assert_all_good_commits_are_as_committed(log)


@pytest.mark.parametrize("seed", seeds(short=2, soak=200))
def test_random_kills_and_resizes_end_with_the_undisturbed_weights(seed, new_tiny_run, undisturbed) -> None:
    rng = random.Random(seed)
    sizes = changing_sizes(rng, num_attempts=rng.randint(2, 4))
    run = new_tiny_run(**OFTEN)
    plan = random_plan(seed, num_steps=KILLED_BY_STEP, world_sizes=sizes)
    kill_and_resize(run, sizes, random_parallel(rng, len(sizes)), plan)
    assert_as_if_nothing_had_happened(run, undisturbed)


@pytest.mark.parametrize("seed", seeds(short=1, soak=30))
def test_sigterm_at_a_random_moment_ends_in_a_commit_or_a_clean_rollback(seed, new_tiny_run, undisturbed) -> None:
    rng = random.Random(seed)
    world_size, resumed_on = changing_sizes(rng, num_attempts=2)
    stop = SignalFault(
        type="terminate",
        rank=rng.randrange(world_size),
        step=rng.randint(1, KILLED_BY_STEP),
        phase=ACROSS_THE_LOOP[seed % len(ACROSS_THE_LOOP)],
        after_s=rng.uniform(0.0, LONGEST_DELAY_S),
    )
    run = new_tiny_run(**OFTEN)
    attempt = supervise(run, world_size, parallel=random_parallel(rng, 1), faults=FaultPlan(faults=(stop,)))
    assert (attempt.outcome, attempt.attempt) == ("preempted", 1), stop
    assert_all_good_commits_are_as_committed(log_of(run))
    supervise(run, resumed_on)
    assert_as_if_nothing_had_happened(run, undisturbed)


class Command:
    """`assay train` in a process group of its own."""

    def __init__(self, tree: dict, folder: Path) -> None:
        recipe = folder / "recipe.yaml"
        recipe.write_text(yaml.safe_dump({**tree, "trainer": {**tree["trainer"], "commit_every": 2}}))
        self._arguments = ["train", str(recipe), "--run-id", "struck"]
        self._environment = {**os.environ, "ASSAY_HOME": str(folder / "home")}
        self._folder = folder
        self._started: list[subprocess.Popen] = []

    def start(self, *options: object, faults: FaultPlan = NO_FAULTS) -> subprocess.Popen:
        plan = self._folder / "faults.yaml"
        plan.write_text(yaml.safe_dump(faults.model_dump(mode="json")))
        arguments = [*self._arguments, "--faults", str(plan), *map(str, options)]
        process = subprocess.Popen(
            [sys.executable, "-c", "from assay.cli.main import main; main()", *arguments],
            env=self._environment,
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        """Leave no process, whatever the test came to."""
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def run_when_committed(self, num_commits: int):
        """The run, once it has so many commits."""
        folder = Path(self._environment["ASSAY_HOME"]) / "struck"
        while not (folder / "run.json").exists():
            time.sleep(0.02)
        run = load_run(Home.from_environment(), "struck")
        while len(log_of(run).commits()) < num_commits:
            time.sleep(0.02)
        return run


@pytest.fixture
def command(tiny_recipe_tree, tmp_path, monkeypatch):
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    it = Command(tiny_recipe_tree, tmp_path)
    yield it
    it.end()


def slow_steps(world_size: int, extra_s: float = 0.1) -> FaultPlan:
    slow = [{"type": "slow", "rank": rank, "step": 3, "extra_s": extra_s} for rank in range(world_size)]
    return FaultPlan.model_validate({"faults": slow})


@pytest.mark.parametrize("seed", seeds(short=1, soak=10))
def test_sigterm_at_a_random_moment_of_the_whole_command_leaves_nothing_half_done(
    seed, command, tmp_path, undisturbed
) -> None:
    rng = random.Random(seed)
    process = command.start("--workers", 2)
    time.sleep(rng.uniform(0.2, 12.0))
    to_all_of_the_job = rng.random() < 0.5  # as Slurm sends it; Kubernetes tells the first process only
    (os.killpg if to_all_of_the_job else os.kill)(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode in (0, -signal.SIGTERM), output
    assert "Traceback" not in output
    if not (tmp_path / "home" / "struck" / "run.json").exists():
        return
    run = load_run(Home.from_environment(), "struck")
    assert_all_good_commits_are_as_committed(log_of(run))
    supervise(run, world_size=4)
    assert_as_if_nothing_had_happened(run, undisturbed)


@pytest.mark.parametrize("hang_after_s", [60.0, 1.0])
def test_an_attempt_that_was_thought_dead_can_commit_nothing(hang_after_s, command, undisturbed) -> None:
    zombie = command.start("--workers", 2, "--hang-after", hang_after_s, faults=slow_steps(2))
    run = command.run_when_committed(2)
    os.killpg(zombie.pid, signal.SIGSTOP)
    log = log_of(run)
    assert log.finished() is None
    supervise(run, world_size=4)
    entries = log.entries()
    os.killpg(zombie.pid, signal.SIGCONT)
    output, _ = zombie.communicate(timeout=120)
    assert zombie.returncode == 1, output
    assert "was replaced by attempt 2" in output
    assert log.entries() == entries
    assert_as_if_nothing_had_happened(run, undisturbed)


def test_ranks_whose_supervisor_was_killed_leave(command, undisturbed) -> None:
    process = command.start("--workers", 2, faults=slow_steps(2, extra_s=1.0))
    run = command.run_when_committed(1)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)  # returns when nobody is left who could write
    assert log_of(run).finished() is None
    supervise(run, world_size=1)
    assert_as_if_nothing_had_happened(run, undisturbed)


def test_damage_to_any_file_of_a_commit_is_found_and_the_commit_before_it_used(run_it, tmp_path) -> None:
    run, log, _ = run_it(world_sizes=(2,))
    *_, before, newest = log.commits()
    assert {file.path for file in newest.files} == {path.name for path in Path(run.run_dir, newest.folder).iterdir()}
    for how, file in itertools.product(get_args(DamageKind), newest.files):
        copy = tmp_path / how / file.path
        for folder in ("log", before.folder, newest.folder):
            shutil.copytree(Path(run.run_dir) / folder, copy / folder)
        damaged = CommitLog(open_store(str(copy)))
        damaged.begin_attempt(world_size=1, now_s=0.0)
        damage_file(damaged.store, f"{newest.folder}/{file.path}", how)
        assert damaged.last_intact_commit() == before
        assert file.path in damaged.entries()[-1].reason
