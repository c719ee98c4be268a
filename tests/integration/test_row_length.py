"""What adding a method takes: a folder, and one line of the registry. The rest of assay does not know it.

The method is a test's own, `row_length/` beside this file: a regression by a small network. The source is
copied, the folder laid into it, the line added, and the real commands run on the copy.
"""

import difflib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parent
SRC = HERE.parents[1] / "src"
REGISTRY = "assay/training/methods/registry.py"
CLASSIFIER = '    Entry("classify", config="ClassifyConfig", method="ClassifyMethod"),\n'
ROW_LENGTH = '    Entry("row_length", config="RowLengthConfig", method="RowLengthMethod"),\n'
KILL = {"faults": [{"type": "kill", "rank": 0, "step": 10, "phase": "compute"}]}

Assay = Callable[..., Any]


@pytest.fixture(scope="module")
def copied_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`src` with the method in it."""
    source = tmp_path_factory.mktemp("copy") / "src"
    shutil.copytree(SRC, source, ignore=shutil.ignore_patterns("*.pyc.*", "*.egg-info"))
    shutil.copytree(HERE / "row_length", source / "assay/training/methods/row_length")
    (source / REGISTRY).write_text(with_the_line((SRC / REGISTRY).read_text()))
    return source


def with_the_line(registry: str) -> str:
    assert registry.count(CLASSIFIER) == 1
    return registry.replace(CLASSIFIER, CLASSIFIER + ROW_LENGTH)


@pytest.fixture(scope="module")
def recipe(tiny_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = {
        "name": "lengths",
        "data": {"dataset": str(tiny_dataset), "split": {"type": "hash", "validation_fraction": 0.3}},
        "loader": {"lanes": 4, "global_batch_size": 32, "window_rows": 16, "threads": 1},
        "method": {"type": "row_length", "vocab_size": 300, "slice_columns": ["language", "turns"]},
        "trainer": {
            "max_steps": 12, "commit_every": 4, "evaluate_every": 4, "optimizer": {"learning_rate": 0.001},
        },
        "retention": {"keep_last": 1, "keep_best": 1},
    }  # fmt: skip
    path = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    path.write_text(yaml.safe_dump(tree))
    (path.parent / "kill.yaml").write_text(yaml.safe_dump(KILL))
    return path


@pytest.fixture(scope="module")
def assay(copied_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Assay:
    """Runs a command of the copy: `assay("show", RUN)` is what it prints as JSON, `code` its exit code."""
    home = tmp_path_factory.mktemp("home")
    environment = {**os.environ, "PYTHONPATH": str(copied_source), "ASSAY_HOME": str(home)}

    def run(*arguments: object, code: int = 0, as_json: bool = True) -> Any:
        command = [sys.executable, "-m", "assay", *map(str, arguments), *(["--json"] if as_json else [])]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == code, f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return json.loads(done.stdout) if as_json else done.stdout

    return run


@pytest.fixture(scope="module")
def trained(assay: Assay, recipe: Path) -> dict[str, dict[str, Any]]:
    """The recipe under both ways of sharing weights, on one worker undisturbed and on two with one killed."""
    kill = ("--faults", recipe.parent / "kill.yaml")
    variants = {
        "ddp-1": (),
        "ddp-2": ("--workers", 2, *kill),
        "fsdp2-1": ("--parallel", "fsdp2", *kill),
        "fsdp2-2": ("--parallel", "fsdp2", "--workers", 2, *kill),
    }
    return {name: assay("train", recipe, "--run-id", name, *options) for name, options in variants.items()}


def test_the_diff_of_a_method_is_on_the_architecture_page() -> None:
    before = (SRC / REGISTRY).read_text()
    lines = list(difflib.unified_diff(before.splitlines(), with_the_line(before).splitlines(), n=1, lineterm=""))
    changes = [line for line in lines if line[0] in "+-" and not line.startswith(("+++", "---"))]
    assert changes == [f"+{ROW_LENGTH.rstrip()}"]
    page = (SRC.parent / "docs" / "architecture.md").read_text()
    assert f"+{ROW_LENGTH.rstrip()}" in page


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_it_trains_elastically_to_the_same_weights(trained: dict[str, dict[str, Any]]) -> None:
    assert {run["status"] for run in trained.values()} == {"succeeded"}
    assert {name: len(run["attempts"]) for name, run in trained.items()} == {
        "ddp-1": 1, "ddp-2": 2, "fsdp2-1": 2, "fsdp2-2": 2,
    }  # fmt: skip
    # By step 10 the commit of step 4 is durable: the next one waits for it.
    resumed = [attempt["start_step"] for run in trained.values() for attempt in run["attempts"][1:]]
    assert len(resumed) == 3 and set(resumed) <= {4, 8}
    assert len({run["weights_digest"] for run in trained.values()}) == 1
    assert {run["audit"]["verdict"] for run in trained.values()} == {"pass"}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_it_is_evaluated_by_its_own_metrics(trained: dict[str, dict[str, Any]], assay: Assay) -> None:
    run = assay("runs", "show", "ddp-2")
    evaluation = run["evaluation"]
    measured = {item["metric"]["name"]: item["estimate"] for item in evaluation["overall"]["measured"]}
    assert list(measured) == ["squared_error", "absolute_error"]
    error = measured["squared_error"]
    assert 0 < error["low"] < error["value"] < error["high"]
    assert {item["column"] for item in evaluation["slices"]} == {"language", "turns"}
    assert evaluation["overall"]["num_rows"] == sum(
        item["metrics"]["num_rows"] for item in evaluation["slices"] if item["column"] == "language"
    )
    # What commits are kept by: the error falls as it learns, so the last commit is the best and the only one.
    metrics = [commit["metric"] for commit in run["commits"]]
    assert metrics == sorted(metrics, reverse=True) and metrics[-1] == pytest.approx(error["value"])
    assert {"absolute_error", "validation_squared_error"} <= set(run["metrics"])
    listed = {item["run_id"]: (item["metric"], item["value"]) for item in assay("runs")}
    assert listed["ddp-2"] == ("squared error", pytest.approx(error["value"]))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_it_is_audited_compared_and_reported(
    trained: dict[str, dict[str, Any]], assay: Assay, recipe: Path, tmp_path: Path
) -> None:
    assert assay("runs", "audit", "fsdp2-2")["verdict"] == "pass"
    replayed = assay("runs", "replay", "ddp-1", "--step", 6)
    assert replayed["verdict"] == "equal"
    (same,) = assay("decide", "compare", "ddp-1", "ddp-2", "--out", tmp_path / "same.html")
    assert (same["verdict"], same["weights_equal"], same["difference"]["value"]) == ("pass", True, 0.0)
    assay("train", recipe, "trainer.optimizer.learning_rate=0.05", "--run-id", "faster")
    (better,) = assay("decide", "compare", "ddp-1", "faster", "--out", tmp_path / "better.html")
    assert better["verdict"] == "pass" and better["difference"]["high"] < 0
    assert better["metric"] == {
        "name": "squared_error", "unit": "squared nats of length", "higher_is_better": False,
    }  # fmt: skip
    (worse,) = assay("decide", "compare", "faster", "ddp-1", "--out", tmp_path / "worse.html", code=1)
    assert worse["verdict"] == "fail"
    page = (tmp_path / "better.html").read_text()
    assert "squared error" in page and "Slice by slice" in page
    assay("report", "ddp-2", "--out", tmp_path / "run.html", as_json=False)
    page = (tmp_path / "run.html").read_text()
    assert "squared error" in page and "language" in page
    assert not {"ROC", "Calibration", "AUC"} & set(page.replace("<", " ").replace(">", " ").split())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_campaign_decides_on_it(assay: Assay, recipe: Path) -> None:
    tree = {
        "name": "lengths",
        "question": "Does a far higher learning rate help?",
        "recipe": recipe.name,
        "candidates": [{"name": "faster", "patch": {"trainer.optimizer.learning_rate": 0.05}}],
        "seeds": 3,
        "budget_device_hours": 1,
        "benchmarks": [{"type": "predictions", "name": "error", "score": "own"}],
        "rule": {"primary": ["error"], "least_effect": 0.02, "prior_sd": 2.0},
    }
    path = recipe.parent / "campaign.yaml"
    path.write_text(yaml.safe_dump(tree))
    assay("decide", "run", path, as_json=False)
    (decision,) = assay("decide", "show", "lengths")
    (effect,) = decision["effects"]
    # Less is better, so a smaller error counts as a gain.
    assert decision["recommendation"] == "scale"
    assert effect["unit"] == "squared nats of length"
    assert effect["effect"]["low"] > 0.02
