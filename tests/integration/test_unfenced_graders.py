"""Commands that run python graders, on a kernel that cannot keep them in: refused before anything is there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import older_kernel
from assay.cli.main import main
from assay.scoring.python_graders import VARIABLE
from integration.test_eval_endpoint import Handler, endpoint  # noqa: F401
from prompt_rows import grpo_recipe, prompt_dataset

PYTHON = {"type": "python", "name": "own", "source": "def grade(sample, item):\n    return 1.0"}
BENCHMARK = {"type": "generation", "name": "b", "items": "b.jsonl", "sampling": {"max_tokens": 6}, "grader": PYTHON}
SUITE = {"name": "s", "benchmarks": [BENCHMARK]}


@pytest.fixture(autouse=True)
def no_warning_yet(monkeypatch: pytest.MonkeyPatch, fenced: None) -> None:
    monkeypatch.setenv(VARIABLE, "")


def without_landlock(home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, older_kernel.__file__, "landlock", sys.executable, "-m", "assay"]
    environment = {**os.environ, "ASSAY_HOME": str(home), "PYTHONPATH": ":".join(sys.path)}
    return subprocess.run(
        [*command, *map(str, arguments)], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_suite_is_asked_only_by_who_trusts_its_graders(endpoint: str, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(SUITE))
    (tmp_path / "b.jsonl").write_text(json.dumps({"prompt": "Capital?"}))
    home = tmp_path / "home"
    request = ("eval", "run", "m", "--endpoint", endpoint, "--suite", tmp_path / "suite.yaml", "--json")
    refused = without_landlock(home, *request)
    assert refused.returncode == 2
    assert "fences no files (Landlock: Function not implemented)" in refused.stderr
    assert "--python-graders trusted" in refused.stderr
    assert not home.exists()
    trusted = without_landlock(home, *request, "--python-graders", "trusted")
    assert json.loads(trusted.stdout)["score"]["value"] == 1.0


@pytest.mark.slow
def test_a_run_is_begun_only_by_who_trusts_its_graders_and_its_ranks_hear_of_it(tmp_path: Path) -> None:
    recipe = grpo_recipe(
        prompt_dataset(tmp_path / "data", num_rows=40),
        tmp_path / "base",
        method={"rewards": [{"grader": PYTHON}]},
        trainer={"max_steps": 1},
    )
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    home = tmp_path / "home"
    refused = without_landlock(home, "train", tmp_path / "recipe.yaml", "--run-id", "r")
    assert refused.returncode == 2
    assert "this kernel does not keep a python grader in" in refused.stderr
    assert not home.exists()
    for how in ("here", "background"):
        request = ("train", tmp_path / "recipe.yaml", "--run-id", how, "--on", how, "--python-graders", "trusted")
        assert without_landlock(home, *request).returncode == 0
    assert without_landlock(home, "runs", "audit", "here").returncode == 0


@pytest.mark.slow
def test_a_recipes_suite_is_refused_likewise(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(SUITE))
    (tmp_path / "b.jsonl").write_text(json.dumps({"prompt": "Capital?"}))
    recipe = grpo_recipe(prompt_dataset(tmp_path / "data", num_rows=40), tmp_path / "base")
    recipe["evaluation"] = {"suite": str(tmp_path / "suite.yaml")}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    refused = without_landlock(tmp_path / "home", "train", tmp_path / "recipe.yaml")
    assert refused.returncode == 2
    assert "this kernel does not keep a python grader in" in refused.stderr
    assert not (tmp_path / "home").exists()


def test_a_job_elsewhere_is_told_that_they_are_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    recipe = grpo_recipe(prompt_dataset(tmp_path / "data", num_rows=40), tmp_path / "base")
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    request = ["train", str(tmp_path / "recipe.yaml"), "--on", "slurm", "--dry-run"]
    with pytest.raises(SystemExit) as ended:
        main([*request, "--python-graders", "trusted"])
    assert not ended.value.code
    assert "--python-graders=trusted" in capfd.readouterr().out
