"""`assay triage slow` over real runs: a key of the recipe from which on steps take longer is named, on hosts
that are alike and on hosts none of which is as quick as another."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import yaml

from assay.cli.main import main
from assay.store.home import Home
from assay.triage.slow.series import SeriesNames, ledger_series

from .conftest import PLANTS

KEY = "method.encoder.num_layers"


def json_output(capfd: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """What a command says as JSON."""
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments), "--json"])
    out, err = capfd.readouterr()
    assert not ended.value.code, err
    return json.loads(out)


def first_finding_of_steps(capfd: pytest.CaptureFixture[str]) -> Any:
    """What `assay triage` alone says of them."""
    return next(item for item in json_output(capfd, "triage")["results"] if item["about"] == "slower")


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_recipe_key_that_costs_much_is_named_over_real_runs(
    tiny_recipe_tree: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    tree = tiny_recipe_tree
    tree["trainer"] = {**tree["trainer"], "epochs": 2, "commit_every": 20}
    tree["method"]["encoder"] |= {"hidden_size": 64, "intermediate_size": 256}
    (recipe := tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    for number in range(16):
        changes = [
            f"{KEY}={2 if number < 8 else 8}",
            f"seed={number}",
            f"method.encoder.dropout=0.{1 + number % 3}",
        ]
        json_output(capfd, "train", recipe, *changes, "--run-id", f"r{number:02}")
    found = json_output(capfd, "triage", "slow")
    (change,) = (item for item in found["changes"] if item["ratio"] > 1.3)
    assert (change["index"], change["verdict"]) == (8, "assigned"), found
    assert [*change["assigned"]] == [f"recipe.{KEY}"]
    assert change["phase"] == "compute" and change["low"] > 1.0
    first = first_finding_of_steps(capfd)
    assert first["is_confirmed"] and f"recipe.{KEY}" in first["change"]["assigned"]


TRAIN_SCRIPT = """
import json, os, sys
from assay.cli.main import main

for host, layer_s, arguments in json.load(sys.stdin):
    os.environ |= {"NOISY_HOST": host, "NOISY_LAYER_S": str(layer_s)}
    try:
        main(arguments)
    except SystemExit as ended:
        assert not ended.code, arguments
"""
LAYER_S = 0.02
"""What a layer takes on a host that is as quick as most: much more than its own arithmetic on a busy machine."""
HOSTS, RUNS, BEGINS = 8, 32, 18
HOSTS_SD, RUNS_SD = 0.08, 0.03
"""By how much hosts differ (those of one model do by up to 8%), and a host from run to run; in logarithms."""


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_recipe_key_that_costs_30_percent_is_named_among_noisy_hosts(
    tiny_recipe_tree: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    """Ten layers take ten layers' time, and thirteen three tenths more, wherever they are."""
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    tree = tiny_recipe_tree
    tree["loader"] = {**tree["loader"], "lanes": 2, "global_batch_size": 8}
    tree["trainer"] = {**tree["trainer"], "max_steps": 8, "commit_every": 8}
    (recipe := tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tree))
    rng = Random(18)
    rate = [math.exp(rng.gauss(0.0, HOSTS_SD)) for _ in range(HOSTS)]
    runs = []
    for number in range(RUNS):
        host = rng.randrange(HOSTS)
        changes = [
            f"{KEY}={10 if number < BEGINS else 13}",
            f"seed={number}",
            f"method.encoder.dropout=0.{rng.randrange(1, 4)}",
        ]
        layer_s = LAYER_S * rate[host] * math.exp(rng.gauss(0.0, RUNS_SD))
        runs.append((f"n{host}", layer_s, ["train", str(recipe), *changes, "--run-id", f"r{number:02}"]))
    paths = [str(PLANTS / "noisy_host"), *filter(None, [os.environ.get("PYTHONPATH")])]
    planted = {"PYTHONPATH": os.pathsep.join(paths), "NOISY_HOST": "n0", "NOISY_LAYER_S": "0"}
    command, environment = [sys.executable, "-c", TRAIN_SCRIPT], {**os.environ, **planted}
    done = subprocess.run(command, input=json.dumps(runs), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    found = json_output(capfd, "triage", "slow")
    assert found["measurements"] == RUNS and found["noise"] > 0.03, found
    (change,) = found["changes"]
    assert abs(change["index"] - BEGINS) <= 3 and change["verdict"] == "assigned", found
    assert [*change["assigned"]] == [f"recipe.{KEY}"], found
    with Home.at(tmp_path / "home").open_ledger() as ledger:
        measured = ledger_series(ledger, SeriesNames()).values
    # What the machine did beside is in the measurements, so they say how large the change is; not a clock.
    planted = np.array([seconds for _, seconds, _ in runs])
    before, after = np.split(np.log(measured / planted), [BEGINS])
    assert change["phase"] == "compute", found
    assert abs(math.log(change["ratio"]) - float(after.mean() - before.mean())) < 3 * HOSTS_SD / math.sqrt(HOSTS), found
    first = first_finding_of_steps(capfd)
    assert first["is_confirmed"] and f"recipe.{KEY}" in first["change"]["assigned"]
    # Where the key is on no record, hosts are not blamed in its place.
    (change,) = json_output(capfd, "triage", "slow", "--factors", "host,code,model")["changes"]
    assert (change["verdict"], change["assigned"]) == ("unexplained", {}), change
