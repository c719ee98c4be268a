"""Several clusters train one recipe and meet in a store: real processes, each with a home of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

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

    def make(names: str, **outer: Any) -> list[Cluster]:
        tree = {**tiny_recipe_tree, "outer": {"every": 5, "clusters": len(names), "deadline_s": 120.0, **outer}}
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


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + START_S
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
