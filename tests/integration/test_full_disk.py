"""A disk that is really full: one error that says so, nothing committed lost, all goes on once room is made."""

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
import yaml

from assay.cli.main import main
from assay.data.dataset.dataset import Dataset
from assay.records.evaluation import AnyEvaluation
from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import open_store
from assay.workflows.train import evaluate_run
from full_disk import Disk
from variants import soaked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
TRY_AGAIN = 75


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def assay(capfd: pytest.CaptureFixture[str]) -> Callable[..., CommandResult]:
    def run(*arguments: object) -> CommandResult:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        output = capfd.readouterr()
        return CommandResult(int(ended.value.code or 0), output.out, output.err)

    return run


def assert_no_room(result: CommandResult) -> None:
    output = [line for line in result.err.splitlines() if line.startswith(("error: ", "Traceback"))]
    assert (result.code, len(output)) == (TRY_AGAIN, 1), result
    assert "The disk is full: free some space" in result.err, result


@pytest.mark.parametrize("reserve", [*soaked(0), 40_000, *soaked(400_000)])
def test_a_dataset_is_built_once_there_is_room(
    reserve: int, disk: Disk, assay: Callable[..., CommandResult], tmp_path
) -> None:
    rng = random.Random(0)
    texts = [" ".join(str(rng.randrange(10**6)) for _ in range(30)) for _ in range(6_000)]
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(f"{text},{len(text) % 2}\n" for text in texts))
    named = ("--text", "text", "--label", "label", "--tokenizer", "new:300", "--rows-per-shard", 1500)
    build = ("data", "build", tmp_path / "rows.csv", *named, "--out")
    disk.fill(reserve=reserve)
    assert_no_room(assay(*build, disk.folder / "rows"))
    assert not (disk.folder / "rows" / "manifest.json").exists()
    disk.make_room()
    for folder in (disk.folder / "rows", tmp_path / "elsewhere"):
        assert assay(*build, folder).code == 0
    built, elsewhere = (Dataset.open(folder) for folder in (disk.folder / "rows", tmp_path / "elsewhere"))
    assert built.fingerprint == elsewhere.fingerprint


@pytest.mark.parametrize("reserve", [0, *soaked(100_000), 700_000, *soaked(1_200_000)])
def test_a_run_goes_on_from_its_last_commit_once_there_is_room(
    reserve: int, disk: Disk, assay: Callable[..., CommandResult], tiny_recipe_tree, undisturbed, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(disk.folder / "home"))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(tiny_recipe_tree))
    disk.fill(reserve=reserve)
    response = assay("train", recipe, "--run-id", "r")
    assert_no_room(response)
    log = CommitLog(open_store(str(disk.folder / "home" / "r")))
    committed = [commit.folder for commit in log.commits()]
    disk.make_room()
    if committed:
        assert assay("runs", "audit", "r").code == 3
        assert "'assay train --resume r'" in response.err, response.err
    run_exists = Home.from_environment().has_run("r")
    assert assay("train", *(("--resume", "r") if run_exists else (recipe, "--run-id", "r"))).code == 0
    finished = CommitLog(open_store(str(disk.folder / "home" / "r"))).finished()
    assert finished is not None and finished.weights_digest == undisturbed
    assert assay("runs", "audit", "r", "--deep").code == 0


def test_a_disk_that_is_full_behind_the_last_step_costs_nothing(
    disk: Disk, assay: Callable[..., CommandResult], tiny_recipe_tree, undisturbed, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(disk.folder / "home"))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(tiny_recipe_tree))

    def full(run: Run, log: CommitLog) -> AnyEvaluation:
        disk.fill(reserve=0)
        return evaluate_run(run, log)

    with monkeypatch.context() as patch:
        patch.setattr("assay.workflows.train.evaluate_run", full)
        response = assay("train", recipe, "--run-id", "r")
    assert_no_room(response)
    assert "'assay train --resume r' continues from its last commit" in response.err
    disk.make_room()
    assert assay("train", "--resume", "r").code == 0
    assert assay("runs", "audit", "r", "--deep").code == 0
    finished = CommitLog(open_store(str(disk.folder / "home" / "r"))).finished()
    assert finished is not None and finished.weights_digest == undisturbed


def test_a_model_leaves_once_there_is_room_and_a_drill_is_done(
    disk: Disk, assay: Callable[..., CommandResult], tiny_recipe_tree, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(tiny_recipe_tree))
    assert assay("train", recipe, "--run-id", "r", "trainer.max_steps=5").code == 0
    disk.fill(reserve=20_000)
    assert_no_room(assay("runs", "export", "r", "--out", disk.folder / "model"))
    assert not (disk.folder / "model" / "config.json").exists()
    monkeypatch.setenv("ASSAY_HOME", str(disk.folder / "home"))
    assert_no_room(assay("train", "drill", recipe, "--out", tmp_path / "drill.json"))
    disk.make_room()
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    assert assay("runs", "export", "r", "--out", disk.folder / "model").code == 0
    assert (disk.folder / "model" / "model.safetensors").is_file()
