"""What is built is what a user gets: the wheel, installed by itself, holds all that the command needs."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def copy_sources(folder: Path) -> Path:
    """Copy what an image is built from, so that the checkout stays as it is."""
    folder.mkdir()
    for line in (ROOT / "Containerfile").read_text().splitlines():
        for name in line.split()[1:-1] if line.startswith("COPY") else ():
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
                shutil.copytree(ROOT / name, folder / name, ignore=ignored)
            else:
                shutil.copy(ROOT / name, folder)
    return folder


def build(source: Path, folder: Path, **variables: str) -> Path:
    """Build a wheel into a new folder; return the wheel."""
    built = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*built, "--wheel-dir", folder, source], check=True, env={**os.environ, **variables})
    return next(folder.glob("assay-*.whl"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return build(copy_sources(folder / "source"), folder)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs the installed command, away from the checkout; what it needs is borrowed from this environment."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv" / "bin"
    subprocess.run([programs / "pip", "install", "--quiet", "--no-deps", wheel], check=True)
    # A path alone: the .pth files behind it, our own editable one among them, are not read.
    borrowed = sysconfig.get_path("purelib")
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(borrowed + "\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*arguments: object, program: str = "assay") -> str:
        command = [programs / program, *map(str, arguments)]
        environment["ASSAY_HOME"] = str(folder / "home")
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.slow
def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    files = [path for path in (ROOT / "src" / "assay").rglob("*") if path.is_file()]
    expected = {path.relative_to(ROOT / "src").as_posix() for path in files if "__pycache__" not in path.parts}
    assert expected - set(zipfile.ZipFile(wheel).namelist()) == set()


@pytest.mark.slow
def test_the_command_runs_from_the_wheel(
    installed: Callable[..., str], tiny_recipe_tree: dict[str, Any], tmp_path: Path
) -> None:
    assert "site-packages/assay" in installed("-c", "import assay; print(assay.__path__[0])", program="python")
    assert installed("--version").startswith("assay, version 0.")
    assert "train" in installed("--help")
    installed("plan", "new", tmp_path / "program.yaml")
    assert "activities:" in (tmp_path / "program.yaml").read_text()
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tiny_recipe_tree))
    installed("train", tmp_path / "recipe.yaml", "--run-id", "tiny")
    installed("report", "tiny", "--out", tmp_path / "report.html")
    assert "<svg" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_builds_of_two_commits_have_two_code_versions_and_those_of_one_have_one(tmp_path: Path) -> None:
    source = copy_sources(tmp_path / "source")
    venv.create(environment := source / ".venv")  # inside a checkout whose commit is not that of the build

    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(command, cwd=source, check=True, capture_output=True, text=True).stdout.strip()

    def commit_and_build(name: str) -> Path:
        git("add", "src/assay", "*.*")
        git("commit", "--quiet", "--message", name)
        return build(source, tmp_path / name)

    def code_version(wheel: Path) -> str:
        install = [sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install", "--quiet"]
        subprocess.run([*install, "--no-deps", "--force-reinstall", wheel], check=True)
        program = "from assay.base.code_version import code_version; print(code_version())"
        command = [environment / "bin" / "python", "-I", "-c", program]
        return subprocess.run(command, cwd=source, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet")
    first = commit_and_build("first")
    (source / "README.md").write_text("changed")
    second = commit_and_build("second")
    commit = git("rev-parse", "--short=7", "HEAD")
    image = build(
        copy_sources(tmp_path / "image"), tmp_path / "third", ASSAY_COMMIT=commit
    )  # without git, as in an image
    versions = [code_version(wheel) for wheel in (first, second, image)]
    assert versions[0] != versions[1] == versions[2] == f"{versions[0].partition('+')[0]}+g{commit}"
