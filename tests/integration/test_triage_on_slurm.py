"""Triage from end to end on a real Slurm: a node that kills ranks is named, guarded, and found mended."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.cli.main import main
from assay.store.home import Home
from assay.store.launches import saved_launches
from conftest import require
from slurm_cluster import SlurmCluster, missing_program, wait_until

BAD = "n3"
KILLS_RANKS = f"""
import os, signal, threading
from pathlib import Path

def kill_soon():
    if Path(os.environ["ASSAY_TEST_BROKEN"]).exists():
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()

if os.environ.get("SLURMD_NODENAME") == "{BAD}":
    os.register_at_fork(after_in_child=kill_soon)
"""
"""On that node every process that is forked dies after a moment: ranks, and not what started them."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """Four nodes, of which Slurm keeps a record of jobs."""
    require("slurm", missing_program() is None, f"{missing_program()} is not installed")
    started = SlurmCluster(num_nodes=4)
    try:
        started.start()
        for name, value in started.environment.items():
            monkeypatch.setenv(name, value)
        yield started
    finally:
        started.stop()


@pytest.fixture
def recipe(tiny_recipe_tree: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    trainer = {**tiny_recipe_tree["trainer"], "epochs": 1, "max_steps": 4}
    (path := tmp_path / "recipe.yaml").write_text(yaml.safe_dump({**tiny_recipe_tree, "trainer": trainer}))
    return path


def output_of(capfd: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a command prints that ends well."""
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    out, err = capfd.readouterr()
    assert not ended.value.code, err
    return out


@pytest.mark.soak  # 56 real jobs
@pytest.mark.timeout(1200)
def test_a_node_that_kills_ranks_is_named_guarded_and_found_mended(
    cluster: SlurmCluster, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    (sabotage := tmp_path / "sabotage").mkdir()
    (sabotage / "sitecustomize.py").write_text(KILLS_RANKS)
    (broken := tmp_path / "broken").touch()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(sabotage), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("ASSAY_TEST_BROKEN", str(broken))

    def trained(names: list[str], *options: str) -> list[str]:
        """Runs as jobs, each to its end, and the nodes on which they were."""
        on = ("--on", "slurm", "--no-requeue", "--max-restarts", "0", "--sbatch=--mem=1")
        for name in names:
            output_of(capfd, "train", recipe, "--run-id", name, *on, *options)
        wait_until(lambda: not cluster.call("squeue", "-h"), "all jobs", timeout_s=400.0)
        jobs = [saved_launches(Home.from_environment().run(name))[-1].job for name in names]
        lines = {line.split()[0]: line for line in cluster.completions.read_text().splitlines()}
        return [lines[f"JobId={job}"].partition("NodeList=")[2].split()[0] for job in jobs]

    # Ten recipes by four seeds: a unit for Slurm is a job's name without its digits.
    nodes = trained([f"{'abcdefghij'[recipe_of]}-{seed}" for seed in range(4) for recipe_of in range(10)])
    assert set(nodes) == {"n1", "n2", "n3", "n4"}
    found = output_of(capfd, "triage", "failures", cluster.completions, "--factors", "host,user,partition", "--json")
    diagnosis = json.loads(found)
    assert (diagnosis["verdict"], diagnosis["attempts"]) == ("cause", 40), diagnosis
    assert [item["factors"] for item in diagnosis["causes"]] == [{"host": BAD}]
    assert diagnosis["failures"] == diagnosis["causes"][0]["failures"] == nodes.count(BAD)

    (why := tmp_path / "why.json").write_text(found)
    output_of(capfd, "triage", "guard", why, "--refuse")
    assert output_of(capfd, "triage", "guard", "--exclude") == f"{BAD}\n"
    assert BAD not in trained([f"guarded-{number}" for number in range(8)])

    broken.unlink()
    output_of(capfd, "triage", "guard", "--lift", f"host={BAD}")
    fixed_s = time.time()
    assert set(trained([f"mended-{recipe_of}" for recipe_of in "abcdefgh"], f"--sbatch=--nodelist={BAD}")) == {BAD}
    request = ("triage", "fixed", cluster.completions, "--since", f"{int(fixed_s)}", "--where", f"host={BAD}")
    check = json.loads(output_of(capfd, *request, "--json"))
    assert (check["verdict"], check["attempts"], check["failures"]) == ("fixed", 8, 0), check
