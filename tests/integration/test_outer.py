"""Several clusters train one recipe and meet in a store: real processes, each with a home of its own."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from variants import slow, soaked

START_S = 240
LONG_S = 1800.0
"""Starts are mostly imports, which take a minute on a busy machine."""
HOUR_S = 3600
Found = TypeVar("Found")


class Cluster:
    """One cluster's `assay train`, with its own home."""

    clock: dict[str, str]
    """What shifts the clock of all its processes."""

    def __init__(self, folder: Path, name: str, recipe: Path) -> None:
        self.folder, self.name, self._recipe, self.clock = folder, name, recipe, {}
        self.home = folder / f"home-{name}"
        self.process: subprocess.Popen[str] | None = None

    def start(self, *, workers: int = 1) -> None:
        is_known = (self.home / f"run-{self.name}" / "run.json").exists()
        new = [str(self._recipe), "--cluster", self.name, "--meet", str(self.folder / "meet")]
        new += ["--run-id", f"run-{self.name}"]
        arguments = ["train", *(["--resume", f"run-{self.name}"] if is_known else new), "--workers", str(workers)]
        with (self.folder / f"{self.name}.log").open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "assay", *arguments],
                env={**os.environ, "ASSAY_HOME": str(self.home), **self.clock},
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def shift_clock(self, library: Path, offset_s: int) -> None:
        self.clock = {"LD_PRELOAD": str(library), "CLOCK_OFFSET_S": str(offset_s)}

    def kill(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def strike(self, rng: random.Random) -> None:
        """Kill a rank, the supervisor, or the whole cluster. Ranks without a supervisor go within seconds."""
        assert self.process is not None
        supervisor = str(self.process.pid)
        listed = subprocess.run(
            ["ps", "-o", "pid=,ppid=", "-s", supervisor], capture_output=True, text=True, check=False
        )
        processes = [line.split() for line in listed.stdout.splitlines()]
        children = {pid for pid, parent in processes if parent == supervisor}
        ranks = [int(pid) for pid, parent in processes if parent in children]
        kind = rng.choices(["rank", "supervisor", "cluster"], [3, 1, 1])[0]
        if kind == "cluster":
            self.kill()
        elif kind == "supervisor" or not ranks:
            self.process.kill()
            self.process.wait()
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(ranks), signal.SIGKILL)

    def attempt(self) -> int:
        """Return the attempt of the newest commit; 0 before the first one."""
        found = [path.name for path in (self.home / f"run-{self.name}" / "checkpoints").glob("*")]
        return int(max(found, default="0-0").partition("-")[2])

    def is_over(self) -> bool:
        assert self.process is not None
        return self.process.poll() == 0

    def is_down(self) -> bool:
        assert self.process is not None
        return self.process.poll() not in (None, 0)

    def num_outer_steps(self) -> int:
        return len(list((self.folder / "meet" / "outer").glob("0*.json"))) - 1

    def parts(self, outer_step: int) -> list[Any]:
        """Return the parts of an outer step."""
        return json.loads((self.folder / "meet" / "outer" / f"{outer_step:08d}.json").read_text())["parts"]

    def wait(self) -> None:
        assert self.process is not None
        code = self.process.wait(timeout=START_S)
        assert code == 0, (self.folder / f"{self.name}.log").read_text()

    def show(self, *arguments: str) -> Any:
        command = [sys.executable, "-m", "assay", "runs", *arguments, "--json"]
        environment = {**os.environ, "ASSAY_HOME": str(self.home)}
        return json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)

    def outcome(self) -> tuple[str, str]:
        """Return the digest of the last weights, and the audit's verdict."""
        run, audit = self.show("show", f"run-{self.name}"), self.show("audit", f"run-{self.name}", "--deep")
        return run["commits"][-1]["weights_digest"], audit["verdict"]


Clusters = Callable[..., list[Cluster]]


@pytest.fixture
def clusters(tiny_recipe_tree: dict[str, Any], tmp_path: Path) -> Iterator[Clusters]:
    started: list[Cluster] = []

    def make(names: str, *, epochs: int = 1, **outer: Any) -> list[Cluster]:
        tree = {**tiny_recipe_tree, "outer": {"every": 5, "clusters": len(names), "deadline_s": 120.0, **outer}}
        tree["trainer"] = {**tree["trainer"], "epochs": epochs}
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(yaml.safe_dump(tree))
        folder = tmp_path / f"clusters-{len(started)}"
        folder.mkdir()
        found = [Cluster(folder, name, recipe) for name in names]
        started.extend(found)
        return found

    yield make
    for cluster in started:
        if cluster.process is not None and cluster.process.poll() is None:
            cluster.kill()


@pytest.fixture
def shifted_clock(tmp_path: Path, requires: Callable[[str, bool, str], None]) -> Path:
    """Return the library that shifts the wall clock of a process."""
    requires("compiler", shutil.which("cc") is not None, "there is no C compiler")
    library = tmp_path / "shifted_clock.so"
    source = Path(__file__).parents[1] / "shifted_clock.c"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


def wait_until(condition: Callable[[], Found], limit_s: float = START_S) -> Found:
    """Return what the condition returns as soon as that is true."""
    deadline_s = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return found


@pytest.mark.slow
def test_clusters_of_other_sizes_that_die_end_with_the_weights_of_undisturbed_ones(clusters: Clusters) -> None:
    undisturbed = clusters("ab")
    for cluster in undisturbed:
        cluster.start()
    for cluster in undisturbed:
        cluster.wait()
    first, second = clusters("ab")
    first.start()
    second.start()
    wait_until((first.folder / "meet" / "outer" / "00000002.json").exists)
    first.kill()
    first.start(workers=2)
    second.kill()
    second.start(workers=2)
    first.wait()
    second.wait()
    outcomes = {cluster.outcome() for cluster in [*undisturbed, first, second]}
    assert len(outcomes) == 1 and outcomes.pop()[1] == "pass"
    everything = first.show("replay", "run-a", "--outer", "all")
    assert (everything["verdict"], len(everything["parts"])) == ("equal", 8) and everything["weights"]["is_equal"]
    changes = [second.folder / "meet" / "changes" / part["change_sha256"] for part in second.parts(3)]
    changes[0].write_bytes(changes[0].read_bytes()[:-1])
    changes[1].unlink()
    third = second.show("replay", "run-b", "--outer", "3", "--restore")
    assert third["verdict"] == "equal"
    assert [(part["cluster"], part["is_restored"]) for part in third["parts"]] == [("a", True), ("b", True)]
    assert second.outcome()[1] == "pass"


@pytest.mark.slow
def test_a_cluster_that_returns_with_more_workers_than_lanes_trains_on(clusters: Clusters) -> None:
    first, second = clusters("ab", deadline_s=20.0, absent_after=1)
    first.start()
    second.start()
    wait_until((first.folder / "meet" / "outer" / "00000001.json").exists)
    second.kill()
    wait_until((first.folder / "meet" / "outer" / "00000003.json").exists)
    second.start(workers=4)
    first.wait()
    second.wait()
    outcomes = {cluster.outcome() for cluster in (first, second)}
    assert len(outcomes) == 1 and outcomes.pop()[1] == "pass"
    assert first.show("replay", "run-a", "--outer", "all")["verdict"] == "equal"


@pytest.mark.slow
def test_clocks_an_hour_apart_decide_nothing(clusters: Clusters, shifted_clock: Path) -> None:
    early, late = clusters("ab", deadline_s=20.0)
    early.shift_clock(shifted_clock, -HOUR_S)
    late.shift_clock(shifted_clock, HOUR_S)
    began_s = time.time()
    early.start()
    late.start()
    wait_until((early.folder / "meet" / "outer" / "00000001.json").exists)
    late.kill()
    wait_until((early.folder / "meet" / "outer" / "00000002.json").exists)
    late.start()
    early.wait()
    late.wait()
    outcomes = {cluster.outcome() for cluster in (early, late)}
    assert len(outcomes) == 1 and outcomes.pop()[1] == "pass"
    assert early.show("replay", "run-a", "--outer", "all")["verdict"] == "equal"
    for cluster, offset_s in ((early, -HOUR_S), (late, HOUR_S)):
        started_s = cluster.show("show", f"run-{cluster.name}")["launches"][0]["started_s"]
        assert abs(started_s - began_s - offset_s) < HOUR_S / 2, "the clock was not shifted"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("plan", [*slow((0, 4, 5, 2)), *soaked(*((seed, 30, 20, 10) for seed in range(3)))])
def test_random_deaths_of_clusters_ranks_and_supervisors(
    clusters: Clusters, plan: tuple[int, int, int, int], shifted_clock: Path
) -> None:
    seed, num_deaths, epochs, away = plan
    rng = random.Random(seed)
    group = clusters("abc", epochs=epochs, every=10, deadline_s=15.0)
    group[1].shift_clock(shifted_clock, HOUR_S)
    group[2].shift_clock(shifted_clock, -HOUR_S)
    for cluster in group:
        cluster.start(workers=rng.choice([1, 2]))
    attempts = dict.fromkeys("abc", 0)
    for _ in range(num_deaths):
        # A cluster commits between its deaths: to one that is starting, another death would do nothing.
        back = wait_until(
            lambda: restart(group, rng) or [item for item in group if item.attempt() > attempts[item.name]], LONG_S
        )
        victim = rng.choice(back)
        time.sleep(rng.uniform(0.0, 2.0))
        assert not victim.is_over(), "the clusters end before they died often enough"
        victim.strike(rng)
        attempts[victim.name] = victim.attempt()
    restart(group, rng)
    group[2].kill()
    last = group[0].num_outer_steps() + away
    wait_until(lambda: restart(group[:2], rng) or group[0].num_outer_steps() >= last, LONG_S)
    wait_until(lambda: restart(group, rng) or all(cluster.is_over() for cluster in group), LONG_S)
    outcomes = {cluster.outcome() for cluster in group}
    assert len(outcomes) == 1 and outcomes.pop()[1] == "pass"
    assert group[0].show("replay", "run-a", "--outer", "all")["verdict"] == "equal"


def restart(clusters: list[Cluster], rng: random.Random) -> None:
    """Resume the clusters that are down."""
    for cluster in clusters:
        if cluster.is_down():
            cluster.start(workers=rng.choice([1, 2]))
