"""`assay triage guard` and who heeds it: a run here, a job's script, the list."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.cli.main import main
from assay.store.home import Home
from blamed import cause, diagnosis


@pytest.fixture
def recipe(tiny_tree: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    (path := tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tiny_tree))
    return path


def run_command(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    out, err = capfd.readouterr()
    return int(ended.value.code or 0), out, err


def test_a_run_on_what_was_blamed_is_refused_before_anything_is_made_until_the_guard_is_lifted(
    recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    blamed = {"host": socket.gethostname(), "recipe.trainer.optimizer.learning_rate": "0.5"}
    (found := tmp_path / "diagnosis.json").write_text(diagnosis(cause(blamed)).to_json())
    assert run_command(capfd, "triage", "guard", found, "--refuse", "--name", "rate")[0] == 0
    rate = "trainer.optimizer.learning_rate=0.5"
    code, _, err = run_command(capfd, "train", recipe, rate, "--run-id", "a")
    assert code == 2 and "run 'a' matches guard 'rate': 40% of attempts on it failed, elsewhere 4%" in err
    assert not Home.from_environment().has_run("a")
    code, script, err = run_command(capfd, "train", recipe, rate, "--run-id", "a", "--on", "slurm", "--dry-run")
    assert (code, err) == (0, "") and f"#SBATCH --exclude={socket.gethostname()}\n" in script
    assert "--exclude" not in run_command(capfd, "train", recipe, "--on", "slurm", "--dry-run")[1]
    assert run_command(capfd, "triage", "guard", "--exclude")[1] == "\n", "of a host and a rate, the host alone is fine"
    code, listed, _ = run_command(capfd, "triage", "guard")
    assert code == 0 and "rate refuses runs" in " ".join(listed.split()) and "no attempt on record is on it" in listed
    ((status),) = json.loads(run_command(capfd, "triage", "guard", "--json")[1])
    assert (status["has_lapsed"], status["since"], status["guard"]["factors"]) == (False, None, blamed)
    assert run_command(capfd, "triage", "guard", "--lift", "rate")[0] == 0
    assert "no guard stands" in run_command(capfd, "triage", "guard")[1]


def test_a_run_that_is_warned_of_is_trained(recipe: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (found := tmp_path / "diagnosis.json").write_text(diagnosis(cause({"world_size": "1"})).to_json())
    assert run_command(capfd, "triage", "guard", found)[0] == 0
    code, _, err = run_command(capfd, "train", recipe, "trainer.max_steps=2", "--run-id", "b")
    assert code == 0 and err.count("run 'b' matches guard 'world_size=1'") == 1
    assert Home.from_environment().has_run("b")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no.json"], "no.json: no such file. Create one with 'assay triage failures --json > no.json'"),
        (["recipe.yaml"], "not JSON"),
        (["--refuse"], "need a DIAGNOSIS"),
        (["--exclude", "--lift", "x"], "give only one of: a DIAGNOSIS, --lift NAME, --exclude"),
        (["--lift", "x"], "no guard 'x'. There is: none"),
    ],
)
def test_what_is_asked_wrongly_is_one_error(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capfd, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(recipe.parent)
    code, _, err = run_command(capfd, "triage", "guard", *arguments)
    assert code != 0 and message in err and "Traceback" not in err
    assert not (recipe.parent / "home").exists()
