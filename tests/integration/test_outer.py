"""Several clusters train one recipe and meet in a store: real processes, each with a home of its own."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from variants import slow, soaked

START_S = 240


class Cluster:
    """One cluster's `assay train`, with its own home."""

    def __init__(self, folder: Path, name: str, recipe: Path) -> None:
        self.folder, self.name, self._recipe = folder, name, recipe
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
                env={**os.environ, "ASSAY_HOME": str(self.home)},
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def kill(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def strike(self, rng: random.Random) -> str:
        """Kill the whole cluster, a rank or the supervisor; return which. What is left goes within seconds."""
        assert self.process is not None
        session = subprocess.run(
            ["ps", "-o", "pid=", "-s", str(self.process.pid)], capture_output=True, text=True, check=False
        )
        others = [int(pid) for pid in session.stdout.split() if int(pid) != self.process.pid]
        kind = rng.choice(["cluster", "rank", "supervisor"])
        if kind == "cluster":
            self.kill()
        elif kind == "supervisor":
            self.process.kill()
            self.process.wait()
        elif others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(others), signal.SIGKILL)
        return kind

    def is_over(self) -> bool:
        assert self.process is not None
        return self.process.poll() == 0

    def is_down(self) -> bool:
        assert self.process is not None
        return self.process.poll() not in (None, 0)

    def num_outer_steps(self) -> int:
        return len(list((self.folder / "meet" / "outer").glob("0*.json"))) - 1

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


def wait_until(condition: Callable[[], bool], limit_s: float = START_S) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


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
    third = second.show("replay", "run-b", "--outer", "3")
    assert (third["verdict"], [part["cluster"] for part in third["parts"]]) == ("equal", ["a", "b"])


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


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("plan", [*slow((4, 5, 2)), *soaked((30, 25, 10))])
def test_random_deaths_of_clusters_ranks_and_supervisors(clusters: Clusters, plan: tuple[int, int, int]) -> None:
    num_deaths, epochs, away = plan
    rng = random.Random(num_deaths)
    group = clusters("abc", epochs=epochs, every=10, deadline_s=15.0)
    for cluster in group:
        cluster.start(workers=rng.choice([1, 2]))
    wait_until(lambda: group[0].num_outer_steps() >= 1)
    strikes = [group[0].strike(rng)]
    while len(strikes) < num_deaths and not any(cluster.is_over() for cluster in group):
        restart(group, rng)
        time.sleep(rng.uniform(1.0, 6.0))
        strikes.append(rng.choice([cluster for cluster in group if not cluster.is_down()]).strike(rng))
    assert len(strikes) == num_deaths, strikes
    restart(group, rng)
    group[2].kill()
    last = group[0].num_outer_steps() + away
    wait_until(lambda: restart(group[:2], rng) or group[0].num_outer_steps() >= last)
    wait_until(lambda: restart(group, rng) or all(cluster.is_over() for cluster in group), limit_s=900.0)
    outcomes = {cluster.outcome() for cluster in group}
    assert len(outcomes) == 1 and outcomes.pop()[1] == "pass"
    assert group[0].show("replay", "run-a", "--outer", "all")["verdict"] == "equal"


def restart(clusters: list[Cluster], rng: random.Random) -> None:
    """Resume the clusters that are down."""
    for cluster in clusters:
        if cluster.is_down():
            cluster.start(workers=rng.choice([1, 2]))
