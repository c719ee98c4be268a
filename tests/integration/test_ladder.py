"""Ladders on real text, by the command: what it adopts, keeps out and rolls back, when it stops, and what a kill costs.

The rows are functions of the standard library with what their docstrings say. A tiny language model is undertrained, so
a higher learning rate and a later decay help; each does what the other does, so together they gain less than their sum.
"""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.data.dataset.build import build_dataset
from assay.data.dataset.fields import BuildConfig
from in_process import AssayAt

ROOT = Path(__file__).parents[2]
PROGRAM = "from assay.cli.main import main; main()"
FASTER = {"name": "faster", "because": "the loss still falls", "patch": {"trainer.optimizer.learning_rate": 0.006}}
CONSTANT = {"name": "constant", "patch": {"trainer.optimizer.schedule.type": "constant"}}
EPSILON = {"name": "epsilon", "patch": {"trainer.optimizer.epsilon": 2e-8}}
DECAY = {"name": "decay", "patch": {"trainer.optimizer.weight_decay": 20.0}}
DIVERGING = {"name": "diverging", "patch": {"trainer.optimizer.learning_rate": 1e30}}
RUNGS = [{"name": f"s{steps}", "patch": {"trainer.max_steps": steps}} for steps in (8, 12, 16, 20, 25, 32)]


def docstrings(folder: Path) -> Iterator[dict[str, str]]:
    """Short signatures and docstrings, as recipes/sft/docstrings.py finds them."""
    spec = importlib.util.spec_from_file_location("docstrings", ROOT / "recipes" / "sft" / "docstrings.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # One of ten, of many files: held-out rows are clustered by file.
    return (row for row in islice(module.rows(folder), 0, 9_000, 10) if len(row["prompt"] + row["completion"]) < 160)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, a recipe, and a home with one finished run of it."""
    folder = tmp_path_factory.mktemp("docstrings")
    rows = list(islice(docstrings(Path(sysconfig.get_path("stdlib"))), 600))
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = BuildConfig(tokenizer="new:300", format="chat", key_field="file", end_token="[CLS]")
    build_dataset([folder / "rows.jsonl"], folder / "data", config)
    recipe = {
        "name": "docs",
        "data": {"dataset": str(folder / "data"), "split": {"type": "hash", "validation_fraction": 0.2}},
        "loader": {"lanes": 2, "global_batch_size": 8, "window_rows": 32, "threads": 1},
        "method": {
            "type": "sft",
            "train_on": "all",
            "model": {
                "type": "new", "vocab_size": 300, "hidden_size": 16, "num_layers": 1, "num_heads": 2,
                "intermediate_size": 32, "max_tokens": 128, "tie_embeddings": True,
            },
        },
        "trainer": {"max_steps": 40, "commit_every": 40, "optimizer": {"learning_rate": 3e-3}},
        "retention": {"keep_last": 1, "keep_best": 0},
    }  # fmt: skip
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    AssayAt(folder / "home")("train", folder / "recipe.yaml", "--run-id", "base")
    return folder


class Ladder(AssayAt):
    """A copy of the project, and a ladder in it."""

    def __init__(self, project: Path, folder: Path, changes: list[dict[str, Any]], **keys: Any) -> None:
        shutil.copytree(project / "home", folder / "home")
        super().__init__(folder / "home", project)
        self.file = folder / "ladder.yaml"
        tree = {
            "name": "docs",
            "question": "Which changes to the docstring model are worth it?",
            "base": str(project / "recipe.yaml"),
            "changes": changes,
            "seeds": 3,
            "budget_device_hours": 2,
            "benchmarks": [{"type": "predictions", "name": "loss", "score": "own"}],
            "rule": {"primary": ["loss"], "least_effect": 0.02},
            "gates": {"warnings": True},
            **keys,
        }
        self.file.write_text(yaml.safe_dump(tree))

    def view(self, *overrides: str, code: int = 0) -> dict[str, Any]:
        view: dict[str, Any] = self.json("ladder", self.file, *overrides, code=code)
        return view

    def page(self) -> str:
        """Return the page as Markdown, without what no two ladders share: times and the home's path."""
        text = (self.home / "campaigns" / "docs" / "ladder.md").read_text().replace(str(self.home), "HOME")
        text = re.sub(r"declared \S+", "declared", text)
        return re.sub(r"(?m)^- device time: .*", "- device time", text)

    def kill_once(self, is_due: Callable[[], bool]) -> None:
        """Start the command, and kill it and its ranks as soon as something is there."""
        environment = {**os.environ, "ASSAY_HOME": str(self.home)}
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "ladder", str(self.file)],
            start_new_session=True, cwd=self.folder, env=environment, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while not is_due():
            assert process.poll() is None, "the ladder ended before it could be killed"
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def actions(view: dict[str, Any]) -> dict[str, str]:
    return {step["step"]: step["action"] for step in view["steps"]}


def clauses(view: dict[str, Any], step: str, rung: str = "") -> dict[str, dict[str, Any]]:
    (found,) = [item for item in view["steps"] if item["step"] == step]
    return {item["type"]: item for trial in found["trials"] if trial["rung"] == rung for item in trial["clauses"]}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_ladder_adopts_keeps_out_rolls_back_and_names_the_interaction(project: Path, tmp_path: Path) -> None:
    rungs = [*RUNGS[:3], {**RUNGS[3], "tries_changes": True}, *RUNGS[4:]]
    gates = {"loss_band": {}, "warnings": True, "code_length": {"margin": 0.5}}
    ladder = Ladder(project, tmp_path, [FASTER, CONSTANT, EPSILON, DECAY], rungs=rungs, gates=gates)
    view = ladder.view()
    assert actions(view) == {
        "base": "continue", "faster": "adopt", "constant": "adopt", "epsilon": "keep out", "decay": "roll back",
        "together": "continue",
    }  # fmt: skip
    assert [step["error_rate"] for step in view["steps"]] == pytest.approx([0, 0.0125, 0.025, 0.0375, 0.0125, 0])
    assert clauses(view, "base")["base_loss"]["verdict"] == "pass"
    assert clauses(view, "faster")["loss_band"]["verdict"] == "pass"
    assert clauses(view, "decay")["gain"]["verdict"] == "fail"
    interaction = clauses(view, "together")["interaction"]
    assert (interaction["verdict"], interaction["reason"]) == ("fail", "less than the sum")
    assert interaction["values"]["changes"] == ["faster", "constant"]
    alone, together = interaction["values"]["alone"], interaction["values"]["together"]["value"]
    expected = together - sum(effect["value"] for effect in alone.values())
    assert interaction["value"] == pytest.approx(expected, abs=1e-9)
    assert view["known_good"].endswith("docs-constant/constant.known_good.json")
    page = ladder.page()
    assert "constant interacts with faster: together" in page and "less than the sum of" in page
    assert (
        "- gain, code length, warnings: rung s20. Its verdicts on 4 changes were those of the base's own size" in page
    )
    assert (ladder.home / "campaigns" / "docs" / "ladder.html").is_file()
    config = json.loads(Path(view["known_good"]).read_text())["recipe"]["trainer"]["optimizer"]
    assert (config["learning_rate"], config["schedule"]) == (0.006, {"type": "constant"})


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_rung_that_leaves_the_band_of_the_smaller_ones_stops_the_ladder(project: Path, tmp_path: Path) -> None:
    broken = {"name": "s36", "patch": {"trainer.max_steps": 36, "trainer.optimizer.learning_rate": 1e-5}}
    ladder = Ladder(project, tmp_path, [FASTER], rungs=[*RUNGS, broken], gates={"loss_band": {}}, seeds=2)
    view = ladder.view(code=1)
    assert (view["status"], actions(view)) == ("stopped", {"base": "stop"})
    found = clauses(view, "base", "s36")["base_loss"]
    assert (found["verdict"], found["reason"]) == ("fail", "above")
    assert "Step base: Rung s36. The held-out loss of" in ladder.page()
    assert not (ladder.home / "campaigns" / "docs-faster").exists()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_ladder_that_is_killed_at_every_stage_ends_with_the_same_page(project: Path, tmp_path: Path) -> None:
    changes, gates = [FASTER, CONSTANT], {"warnings": True, "code_length": {"margin": 0.5}}
    ladders = [
        Ladder(project, tmp_path / name, changes, rungs=RUNGS[:1], gates=gates) for name in ("undisturbed", "killed")
    ]
    undisturbed, killed = ladders
    undisturbed.view()
    stages = (
        "docs-s8-s0/attempts/*", "campaigns/docs/steps/base.json", "campaigns/docs-faster/campaign.json",
        "docs-faster-faster-s3/log/*", "campaigns/docs-faster/decisions/*", "campaigns/docs/steps/faster.json",
        "docs-constant-constant-s8/attempts/*", "campaigns/docs-constant/memo.html",
        "campaigns/docs/steps/constant.json", "docs-together-together-s9/attempts/*",
        "campaigns/docs/steps/together.json",
    )  # fmt: skip
    for stage in stages:
        killed.kill_once(lambda stage=stage: any(killed.home.glob(stage)))
    view = killed.view()
    assert actions(view)["together"] == "continue"
    assert killed.page() == undisturbed.page()
    html = [(ladder.home / "campaigns" / "docs" / "ladder.html").read_text() for ladder in ladders]
    assert len(html[0]) == pytest.approx(len(html[1]), abs=200)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_change_that_makes_the_loss_not_finite_is_rolled_back_and_the_ladder_goes_on(
    project: Path, tmp_path: Path
) -> None:
    ladder = Ladder(project, tmp_path, [DIVERGING, EPSILON], seeds=2)
    view = ladder.view()
    assert actions(view) == {
        "base": "continue", "diverging": "roll back", "epsilon": "keep out", "together": "continue",
    }  # fmt: skip
    assert list(clauses(view, "diverging")["warnings"]["values"]["new"]) == ["loss not finite"]
    assert "New warnings, which the known-good config does not have: loss not finite" in ladder.page()


# In short, on a classifier of random words


@pytest.fixture(scope="module")
def finished_base(tiny_tree: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a finished run of the tiny recipe."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tiny_tree))
    AssayAt(folder / "home")("train", folder / "recipe.yaml", "--run-id", "base")
    return folder / "home"


def small_ladder(recipe: Path, **keys: Any) -> Path:
    tree = {
        "name": "tiny",
        "question": "Does a far higher learning rate help?",
        "base": str(recipe),
        "changes": [{"name": "faster", "patch": {"trainer.optimizer.learning_rate": 0.02}}],
        "seeds": 2,
        "budget_device_hours": 1,
        "benchmarks": [{"type": "predictions", "name": "likelihood", "score": "log_likelihood"}],
        "rule": {"primary": ["likelihood"], "least_effect": 0.02},
        "gates": {"warnings": True, "code_length": {"margin": 0.05}},
        **keys,
    }
    path = recipe.with_name("ladder.yaml")
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.mark.timeout(900)
def test_a_ladder_goes_on_from_every_record_and_trains_nothing_twice(
    recipe: Path, tmp_path: Path, finished_base: Path
) -> None:
    """What a kill leaves is a row of whole records: without the last ones, the same steps and page come again."""
    shutil.copytree(finished_base, tmp_path / "home")
    assay = AssayAt(tmp_path / "home")
    file, steps = small_ladder(recipe), tmp_path / "home" / "campaigns" / "tiny" / "steps"
    first = assay.json("ladder", file)
    assert list(actions(first)) == ["base", "faster", "together"] and first["base_run"] == "base"
    assert {"gain", "code_length", "warnings"} == set(clauses(first, "faster"))
    records = {path.name: path.read_bytes() for path in steps.iterdir()}
    for gone in (["together"], ["together", "faster"], ["together", "faster", "base"]):
        for name in gone:
            (steps / f"{name}.json").unlink()
        again = assay.json("ladder", file)
        assert again == first
        assert {path.name: path.read_bytes() for path in steps.iterdir()} == records
    attempts = [len(list(path.glob("*"))) for path in (tmp_path / "home").glob("tiny-*/attempts")]
    assert attempts == [1, 1, 1, 1]
    (decision,) = (tmp_path / "home" / "campaigns" / "tiny-faster" / "decisions").iterdir()
    decision.write_text(decision.read_text().replace('"is_final":true', '"is_final":false'))
    assert "does not follow from the decision of campaign 'tiny-faster' any more" in assay("ladder", file, code=1).err


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "no finished run of it is on record"),
        ({"gates": {}}, "no gate is set"),
        ({"gaets": {}}, "no such key. Perhaps you meant 'gates'"),
        (
            {"changes": [{"name": "a", "patch": {"trainer.epochs": 2, "seed": 1}}]},
            "patches seed, but all arms are trained with the campaign's seeds",
        ),
        (
            {"changes": [{"name": "a", "patch": {"trainer.epochs": 2, "trainer.commit_every": 9}}]},
            "changes trainer.commit_every and trainer.epochs at once",
        ),
        ({"base": "nowhere.yaml"}, "nowhere.yaml: no such file"),
    ],
)
def test_a_ladder_that_can_not_work_is_refused_before_anything_starts(
    keys: dict[str, Any], message: str, recipe: Path, tmp_path: Path
) -> None:
    refused = AssayAt(tmp_path / "home")("ladder", small_ladder(recipe, **keys), code=2)
    assert message in refused.err
    assert not (tmp_path / "home" / "campaigns").exists()


OPTIMIZER = {"learning_rate": 0.02, "weight_decay": 0.1}
TRIES = {"tries_changes": True}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"changes": [{"name": "both", "patch": {"trainer.optimizer": OPTIMIZER}}]},
            "change 'both' changes trainer.optimizer.learning_rate and trainer.optimizer.weight_decay at once",
        ),
        ({"changes": [{"name": "none", "patch": {"trainer.epochs": 1}}]}, "its patch changes nothing"),
        ({"changes": [{"name": "typo", "patch": {"trainer.epoch": 2}}]}, "change 'typo': "),
        ({"changes": [{"name": "typo", "patch": {"trainer.epoch": 2}}]}, "Perhaps you meant 'trainer.epochs'"),
        ({"rungs": [{"name": "same", "patch": {"trainer.epochs": 1}}]}, "rung 'same': its patch changes nothing"),
        ({"rungs": [{"name": "long", "patch": {"trainer.max_steps": 999}}]}, "rung 'long': its patch changes nothing"),
        ({"rungs": [{"name": "typo", "patch": {"trainer.max_stps": 9}}]}, "rung 'typo': "),
        ({"rule": {"primary": ["likelyhood"], "least_effect": 0.02}}, "perhaps you meant 'likelihood'"),
        ({"seeds": 1}, "a look at 1 seed cannot separate noise from effect"),
        (
            {"rungs": [{"name": "other", "patch": {"data.split.validation_fraction": 0.3}}]},
            "rung 'other': it has another dataset or split than the base",
        ),
        (
            {"gates": {"step_time": {}}, "rungs": [{"name": "few", "patch": {"trainer.max_steps": 3}, **TRIES}]},
            "gates.step_time: rung 'few' has 3 steps, and the time of a step needs 7",
        ),
        ({"gates": {"loss_band": {"points": "no.csv"}}}, "no.csv"),
    ],
)
def test_what_only_the_recipe_shows_is_refused_as_early(
    keys: dict[str, Any], message: str, recipe: Path, tmp_path: Path, finished_base: Path
) -> None:
    shutil.copytree(finished_base, tmp_path / "home")
    refused = AssayAt(tmp_path / "home")("ladder", small_ladder(recipe, **keys), code=2)
    assert message in refused.err
    assert not (tmp_path / "home" / "campaigns").exists()
