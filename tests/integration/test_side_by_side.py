"""`assay triage slow --ab` and `bisect` on real runs: of commits of a repository, datasets and recipes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

import assay
from assay.cli.main import main
from assay.workflows.ab_test import checkouts

STEP = "src/assay/training/trainer/step.py"
BEGINS = '        self._lane_sum.enter_phase("compute")\n'
SLEEPS = f"{BEGINS}        __import__('time').sleep(0.06)\n"
SHORT = ("--steps", "16", "--warm-up", "3")


class CodeRepository:
    """A git repository of this code, where the command is given."""

    def __init__(self, folder: Path, recipe: dict[str, Any]) -> None:
        self.top, self.home = folder / "clone", folder / "home"
        source = Path(assay.__file__).parent
        shutil.copytree(source, self.top / "src" / "assay", ignore=shutil.ignore_patterns("__pycache__"))
        self.recipe = folder / "recipe.yaml"
        self.recipe.write_text(yaml.safe_dump(recipe))
        self.git("init", "-q")
        self.commit("as it is")

    def git(self, *arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "commit.gpgsign=false")
        command = ["git", "-C", str(self.top), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, subject: str, file: str = "README", old: str = "", new: str = "more") -> str:
        """Replace something in a file, or add to it; the commit's name."""
        path = self.top / file
        text = path.read_text() if path.exists() else ""
        assert not old or text.count(old) >= 1
        path.write_text(text.replace(old, new, 1) if old else f"{text}{new}\n")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", subject)
        return self.git("rev-parse", "HEAD")

    def checkouts(self) -> str:
        return self.git("worktree", "list")

    def assay(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """The real command; nothing of it is left in the repository or the home."""
        environment, checkouts = {**os.environ, "ASSAY_HOME": str(self.home)}, self.checkouts()
        command = [sys.executable, "-P", "-m", "assay", "triage", *arguments]
        done = subprocess.run(command, cwd=self.top, env=environment, capture_output=True, text=True, timeout=900)
        assert done.returncode == code, done.stderr
        assert self.checkouts() == checkouts
        assert not self.home.exists()
        return done


@pytest.fixture(scope="module")
def repository(tiny_tree: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> CodeRepository:
    return CodeRepository(tmp_path_factory.mktemp("code"), tiny_tree)


class Line(NamedTuple):
    """Commits of the repository, the oldest first; the command is given at one behind them."""

    quick: str
    alike: str
    broken: str
    sleeps: str


@pytest.fixture(scope="module")
def line(repository: CodeRepository) -> Line:
    quick = repository.git("rev-parse", "HEAD")
    alike = repository.commit("a comment", STEP, new="# nothing")
    broken = repository.commit("half of it", STEP, BEGINS, f"        return half of it\n{BEGINS}")
    sleeps = repository.commit("all of it", STEP, f"        return half of it\n{BEGINS}", SLEEPS)
    repository.commit("words only")
    return Line(quick, alike, broken, sleeps)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_commit_that_sleeps_is_slower_and_its_phase_is_named(repository: CodeRepository, line: Line) -> None:
    output = repository.assay("slow", "--ab", line.quick, "HEAD", str(repository.recipe), *SHORT, "--json").stdout
    found = json.loads(output)
    assert (found["verdict"], found["phase"]) == ("slower", "compute")
    assert 0.03 < found["phases"]["compute"]["difference_s"] < 0.2  # 0.06, and more where other work has the cores
    assert found["low"] > 1.0 and found["what"] == "commits"
    assert found["sources"]["A"] == line.quick and found["b"].endswith("(words only)")


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_commit_that_changes_a_comment_is_not_slower(repository: CodeRepository, line: Line) -> None:
    request = ("slow", "--ab", line.quick, line.alike, str(repository.recipe), *SHORT, "--most-blocks", "5")
    found = json.loads(repository.assay(*request, "--json").stdout)
    assert found["verdict"] in ("same", "undecided") and found["phase"] is None


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_bisection_names_the_commit_that_sleeps_and_the_broken_one_before_it(
    repository: CodeRepository, line: Line
) -> None:
    output = repository.assay("bisect", line.quick, "HEAD", str(repository.recipe), *SHORT, "--json").stdout
    found = json.loads(output)
    assert (found["verdict"], found["culprits"]) == ("several", [line.broken, line.sleeps])
    assert (found["commits"], found["unchanged"]) == (4, 1)
    assert [item["commit"] for item in found["skipped"]] == [line.broken]
    assert "SyntaxError" in found["skipped"][0]["because"]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_two_recipes_are_run_and_the_smaller_model_is_faster(repository: CodeRepository, tmp_path: Path) -> None:
    large = tmp_path / "large.yaml"
    large.write_text("method: {encoder: {num_layers: 6, hidden_size: 64, intermediate_size: 256}}")
    small = tmp_path / "small.yaml"
    small.write_text("name: small")
    request = ("slow", "--ab", str(large), str(small), str(repository.recipe), *SHORT)
    output = repository.assay(*request, "--sequential").stdout
    assert "faster: a step of B takes" in output and "compute most" in output and "device-hours" in output


@pytest.mark.slow
def test_a_recipe_that_fails_is_said_by_its_side_with_its_first_error(repository: CodeRepository, wrong: Path) -> None:
    output = repository.assay("slow", "--ab", "HEAD", "HEAD", str(wrong), *SHORT, code=1).stderr
    assert "does not run: column 'no_such' (in method) is not in dataset" in output and "Traceback" not in output


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_run_stays_behind_or_stands_still_for_good_where_the_command_is_killed(
    repository: CodeRepository, number: signal.Signals, tmp_path: Path
) -> None:
    command = [sys.executable, "-P", "-m", "assay", "triage", "slow", "--ab", "HEAD", "HEAD"]
    environment = {**os.environ, "ASSAY_HOME": str(repository.home), "TMPDIR": str(tmp_path)}
    checkouts = repository.checkouts()
    process = subprocess.Popen([*command, str(repository.recipe)], cwd=repository.top, env=environment)
    wait_until(lambda: len(trainers(tmp_path)) >= 2 and "T" in trainers(tmp_path).values())
    process.send_signal(number)
    wait_until(lambda: not trainers(tmp_path))
    assert process.wait(60) == (130 if number == signal.SIGTERM else -number)
    assert repository.checkouts() == checkouts
    if number == signal.SIGTERM:
        assert not list(tmp_path.glob("assay-*"))


def trainers(folder: Path) -> dict[int, str]:
    """The processes that train below a folder -> their states (T: stopped)."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes()
            state = (process / "stat").read_text().rpartition(") ")[2][0]
            if b"train" in words and bytes(folder) in words and state != "Z":
                found[int(process.name)] = state
    return found


def wait_until(is_so: Callable[[], bool], within_s: float = 120.0) -> None:
    ends_s = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < ends_s
        time.sleep(0.02)


@pytest.fixture
def wrong(repository: CodeRepository) -> Path:
    """A recipe that asks for a column that is not there."""
    path = repository.recipe.with_name("wrong.yaml")
    path.write_text(repository.recipe.read_text().replace("language", "no_such"))
    return path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("slow --ab no HEAD RECIPE", "there is no file 'no', and"),
        ("slow --ab HEAD DATASET RECIPE", "Name two of one kind"),
        ("slow --ab HEAD HEAD", "need a RECIPE"),
        ("slow --ab HEAD HEAD RECIPE RECIPE", "one RECIPE is run"),
        ("slow --ab HEAD HEAD RECIPE --value x", "--value: these options describe a table"),
        ("slow --workers 2", "--workers: these options need --ab"),
        ("slow --ab HEAD HEAD RECIPE --effect 1.5", "--effect 1.5: expected a share"),
        ("slow --ab RECIPE WRONG", "wrong.yaml: column 'no_such' (in method) is not in dataset"),
        ("bisect HEAD HEAD RECIPE", "have the same code in src/assay"),
        ("bisect HEAD no RECIPE", "BAD: 'no' names no commit of"),
        ("bisect OTHER HEAD RECIPE", "is not a first-parent ancestor of BAD"),
    ],
)
def test_what_cannot_be_run_gets_one_error_before_anything_is(
    repository: CodeRepository,
    wrong: Path,
    tiny_dataset: Path,
    arguments: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(repository.top)
    checkouts = repository.checkouts()
    names = {"RECIPE": repository.recipe, "DATASET": tiny_dataset, "WRONG": wrong}
    if "OTHER" in arguments:
        nothing = repository.git("hash-object", "-t", "tree", "-w", "/dev/null")
        names["OTHER"] = Path(repository.git("commit-tree", "-m", "another line", nothing))
    with pytest.raises(SystemExit) as ended:
        main(["triage", *(str(names.get(word, word)) for word in arguments.split())])
    assert ended.value.code == 2
    error = capfd.readouterr().err
    assert message in error and "Traceback" not in error
    assert repository.checkouts() == checkouts


def test_outside_a_repository_that_is_said(
    repository: CodeRepository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The code that runs lies in no repository, and neither does the folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checkouts, "__file__", str(tmp_path / "assay" / "workflows" / "ab_test" / "checkouts.py"))
    with pytest.raises(SystemExit) as ended:
        main(["triage", "slow", "--ab", "a", "b", str(repository.recipe)])
    assert ended.value.code == 2 and "no git repository of assay's code" in capfd.readouterr().err
