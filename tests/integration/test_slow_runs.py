"""`assay triage slow` over real runs: a key of the recipe from which on steps take longer is named."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.cli.main import main

KEY = "method.encoder.num_layers"


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

    def assay(*arguments: object) -> str:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(each) for each in arguments])
        out, err = capfd.readouterr()
        assert not ended.value.code, err
        return out

    for number in range(16):
        changes = [
            f"{KEY}={2 if number < 8 else 8}",
            f"seed={number}",
            f"method.encoder.dropout=0.{1 + number % 3}",
        ]
        assay("train", recipe, *changes, "--run-id", f"r{number:02}")
    found = json.loads(assay("triage", "slow", "--json"))
    (change,) = (each for each in found["changes"] if each["ratio"] > 1.3)
    assert (change["index"], change["verdict"]) == (8, "assigned"), found
    assert [*change["assigned"]] == [f"recipe.{KEY}"]
    assert change["phase"] == "compute" and change["low"] > 1.0
    first = next(
        each for each in json.loads(assay("triage", "--json"))["findings"] if each["about"] == "slower"
    )
    assert first["is_confirmed"] and f"due to recipe.{KEY}" in first["what"]
