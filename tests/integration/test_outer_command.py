"""What `assay train` says of a recipe for several clusters before anything is written."""

from pathlib import Path

import pytest
import yaml

from in_process import AssayAt


@pytest.fixture
def outer_recipe(tiny_recipe_tree: dict[str, object], tmp_path: Path) -> Path:
    path = tmp_path / "outer.yaml"
    path.write_text(yaml.safe_dump({**tiny_recipe_tree, "outer": {"every": 5}}))
    return path


def test_the_check_tells_outer_steps_and_bytes(outer_recipe: Path, tmp_path: Path) -> None:
    printed = AssayAt(tmp_path / "home")("train", str(outer_recipe), "--check", "--measure", "0").out
    # 15,601 weights: four bits each, and a scale of two bytes for every 64 of them.
    assert "clusters     2 are expected; 4 outer steps, after every 5 steps, each 8.3 kB a cluster" in printed


def test_the_check_warns_of_a_deadline_shorter_than_the_measured_inner_steps(
    outer_recipe: Path, tmp_path: Path
) -> None:
    assay = AssayAt(tmp_path / "home")
    printed = [assay("train", str(outer_recipe), "--check", f"outer.deadline_s={limit}").out for limit in (0.001, 600)]
    assert "note: outer.deadline_s=0.001: 5 inner steps of a cluster take about" in printed[0]
    assert "outer.deadline_s" not in printed[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "the recipe trains over several clusters"),
        (("--cluster", "a"), "belong together"),
        (("outer=null", "--cluster", "a", "--meet", "MEET"), "says nothing of outer steps"),
        (("loader.on_damage=quarantine", "--cluster", "a", "--meet", "MEET"), "Use fail"),
        (("trainer.evaluate_every=7", "--cluster", "a", "--meet", "MEET"), "not a multiple of outer.every=5"),
        # The 4 outer steps have numbers up to 24, and the schedule ends at step 20.
        (("trainer.optimizer.schedule.warmup_steps=22", "--cluster", "a", "--meet", "MEET"), "the run has 20 steps"),
        (("outer.every=1", "trainer.evaluate_every=21", "--cluster", "a", "--meet", "MEET"), "the run has 20 steps"),
    ],
)
def test_what_several_clusters_cannot_train_is_refused(
    options: tuple[str, ...], message: str, outer_recipe: Path, tmp_path: Path
) -> None:
    arguments = [str(tmp_path / "meet") if option == "MEET" else option for option in options]
    refused = AssayAt(tmp_path / "home")("train", str(outer_recipe), *arguments, code=2)
    assert message in refused.err
    assert not [path for path in (tmp_path / "meet").rglob("*") if path.is_file()]
    assert not list((tmp_path / "home").glob("**/run.json"))
