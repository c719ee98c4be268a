"""`assay triage startup` of real runs: the parts come to the time that passed, and what grew is named."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from assay.store.metrics.segment import read_segment, segment_path

from .conftest import PlantedAssay


def startup(assay: PlantedAssay, *arguments: str) -> dict[str, Any]:
    return json.loads(assay.run("triage", "startup", *arguments, "--json").stdout)


@pytest.mark.slow
def test_seconds_more_of_imports_are_named_and_all_seconds_are_accounted_for(
    planted_assay: PlantedAssay,
) -> None:
    planted_assay.run(*planted_assay.train_command("first", 2, max_steps=5))  # brings the packages into memory
    command = planted_assay.train_command("quick", 2, max_steps=5)
    began_s = time.time()
    planted_assay.run(*command)
    found = startup(planted_assay, "quick")
    segment = read_segment(segment_path(planted_assay.home / "quick", 1, found["slowest"]["rank"]))
    assert segment.header is not None
    passed_s = float(segment.header.wall_of(segment.step_ends.at_s[0])) - began_s
    assert found["total_s"] == pytest.approx(passed_s, rel=0.01, abs=0.05)
    assert found["unaccounted_s"] <= 0.01 * found["total_s"]
    assert {"command", "launch", "process", "rendezvous", "dataset", "model", "restore", "first_step"} < {
        *found["spans"], "imports",
    }  # fmt: skip
    assert sum(span["share"] for span in found["spans"].values()) == pytest.approx(1.0, abs=0.01)
    planted_assay.plant("slow_imports", SLOW_IMPORTS_S="9")
    planted_assay.run(*planted_assay.train_command("slow", 2, max_steps=5))
    held_against = startup(planted_assay, "slow", "--against", "quick")
    grew = {item["span"]: item["seconds"] for item in held_against["grew"]}
    # Imports on a busy machine differ by seconds from run to run; that three are named, tests of the rule say.
    assert grew and max(grew, key=lambda span: grew[span]) == "imports" and grew["imports"] > 3.0, grew
    output = planted_assay.run("triage", "startup", "slow", "--against", "quick").stdout
    assert "Longer than in quick" in output and "imports +" in output and "-X importtime" in output


@pytest.mark.slow
def test_a_restart_is_counted_from_the_death_before_it(planted_assay: PlantedAssay, tmp_path: Path) -> None:
    faults = tmp_path / "faults.json"
    faults.write_text(json.dumps({"faults": [{"type": "kill", "rank": 1, "step": 3, "phase": "compute"}]}))
    planted_assay.train("hurt", 2, "--faults", str(faults), max_steps=5)
    found = startup(planted_assay)
    assert found["attempts"] == 2 and {"command", "restart"} < {*found["spans"]}
    assert found["slowest"]["attempt"] == 1, "the server that ranks are forked from has imported all by then"
