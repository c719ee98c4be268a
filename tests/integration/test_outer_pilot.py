"""`assay train pilot`: all candidates are trained by real clusters, and averaging stands unless all seeds beat it."""

from pathlib import Path

import pytest
import yaml

from assay.training.outer.pilot import CANDIDATES
from in_process import AssayAt


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_pilot_trains_each_candidate_with_each_seed_and_keeps_nothing(
    tiny_recipe_tree: dict[str, object], tmp_path: Path
) -> None:
    path = tmp_path / "outer.yaml"
    path.write_text(yaml.safe_dump({**tiny_recipe_tree, "outer": {"every": 5}}))
    printed = AssayAt(tmp_path / "home")("train", "pilot", str(path), "--steps", "10")
    losses = [line for line in printed.err.splitlines() if line.count(",") >= 2 and ": 0." in line]
    assert len(losses) == 2 + len(CANDIDATES)
    assert [line.partition(":")[0] for line in losses[:3]] == ["synchronous training", "one cluster alone", "averaging"]
    assert printed.out.startswith("outer.optimizer.type=")
    assert not list((tmp_path / "home").glob("*/run.json"))


def test_a_recipe_without_outer_steps_has_no_pilot(tiny_recipe_tree: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "plain.yaml"
    path.write_text(yaml.safe_dump(tiny_recipe_tree))
    assert "nothing of outer steps" in AssayAt(tmp_path / "home")("train", "pilot", str(path), code=2).err


def test_the_check_warns_of_a_momentum_that_too_few_outer_steps_remain_for(
    tiny_recipe_tree: dict[str, object], tmp_path: Path
) -> None:
    path = tmp_path / "outer.yaml"
    optimizer = {"type": "nesterov", "rate": 0.7, "momentum": 0.9}
    path.write_text(yaml.safe_dump({**tiny_recipe_tree, "outer": {"every": 5, "optimizer": optimizer}}))
    printed = AssayAt(tmp_path / "home")("train", str(path), "--check", "--measure", "0").out
    assert "4 outer steps remain, and a momentum settles after about 20" in printed
