"""What clusters cannot do is one clear error, before a run or anything in the meeting place is made."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.base.digest import sha256_of_file
from in_process import AssayAt
from variants import slow

Train = Callable[..., str]


@pytest.fixture
def train(tiny_recipe_tree: dict[str, Any], tmp_path: Path) -> Train:
    """Try to train as a cluster; return what was printed."""
    recipe = tmp_path / "recipe.yaml"

    def run(*options: object, cluster: str = "a", code: int = 2, home: str = "home", **outer: Any) -> str:
        tree = {**tiny_recipe_tree, "outer": {"every": 5, "deadline_s": 60.0, **outer}}
        recipe.write_text(yaml.safe_dump(tree))
        where = ["--cluster", cluster, "--meet", tmp_path / "meet", "--run-id", f"run-{cluster}"]
        return AssayAt(tmp_path / home, tmp_path)("train", recipe, *where, *options, code=code).err

    return run


def is_untouched(folder: Path) -> bool:
    return not (folder / "home" / "run-a").exists() and not any((folder / "meet").glob("*/*"))


@pytest.mark.parametrize(
    "options, outer, message",
    [
        (["--parallel", "fsdp2", "--workers", "2"], {}, "--parallel fsdp2: clusters exchange whole weights"),
        (["--share", "speed"], {}, "--share speed: lanes pass between clusters"),
        (["--workers", "9"], {}, "--workers 9: loader.lanes=8"),
        ([], {"bits": 5}, "outer.bits"),
        ([], {"clusters": 9}, "outer.clusters=9: loader.lanes=8"),
        (["trainer.evaluate_every=7"], {}, "trainer.evaluate_every=7 is not a multiple of outer.every=5"),
        (["loader.on_damage=quarantine"], {}, "loader.on_damage=quarantine"),
        (["outer=null"], {}, "--cluster: the recipe says nothing of outer steps"),
    ],
)
def test_what_clusters_cannot_do_is_refused(
    train: Train, tmp_path: Path, options: list[str], outer: dict[str, Any], message: str
) -> None:
    assert message in train(*options, **outer)
    assert is_untouched(tmp_path)


def test_a_deadline_shorter_than_the_inner_steps_is_refused_before_the_first_part(train: Train, tmp_path: Path) -> None:
    error = train(clusters=1, deadline_s=0.001, code=2)
    assert "outer.deadline_s=0.001: 5 inner steps take" in error
    assert not (tmp_path / "meet" / "parts").exists()


def test_other_recipes_and_names_are_refused_before_a_run_is_made(train: Train, tmp_path: Path) -> None:
    train(clusters=1, code=0, home="other-home")
    assert "cluster 'a' trains with outer.every=5, this one with outer.every=10" in train(
        cluster="b", every=10, clusters=1
    )
    assert "cluster 'a' is run 'run-a' there" in train("--run-id", "other", clusters=1)
    assert not list((tmp_path / "home").glob("run-*"))


def test_a_fork_of_a_clusters_commit_is_refused(train: Train, tmp_path: Path) -> None:
    train(clusters=1, code=0)
    error = AssayAt(tmp_path / "home", tmp_path)("train", "--from", "run-a", "outer=null", code=2).err
    assert "run 'run-a' trained a share of the lanes" in error


@pytest.mark.parametrize("damage", [lambda change: change.unlink(), *slow(lambda change: change.write_bytes(b""))])
def test_a_damaged_change_is_named_by_audit_and_replay_and_restored(
    train: Train, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    train(clusters=1, code=0)
    [part] = json.loads((tmp_path / "meet" / "outer" / "00000002.json").read_text())["parts"]
    damage(change := tmp_path / "meet" / "changes" / part["change_sha256"])
    assay = AssayAt(tmp_path / "home", tmp_path)
    assert f"{change} " in (report := assay("runs", "audit", "run-a", "--deep", code=1)).out + report.err
    assert "--outer 2 --restore" in report.out + report.err
    found = assay("runs", "replay", "run-a", "--outer", "2", "--restore").out
    assert "= outer step 2, cluster a; its change is restored" in found
    assert sha256_of_file(change) == part["change_sha256"]
    assay("runs", "audit", "run-a", "--deep")
