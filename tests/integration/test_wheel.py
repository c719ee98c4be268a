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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that the checkout stays as it is."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    built = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*built, "--wheel-dir", folder, source], check=True)
    return next(folder.glob("assay-*.whl"))


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
    assert installed("--version").startswith("assay, version ")
    assert "train" in installed("--help")
    installed("plan", "new", tmp_path / "program.yaml")
    assert "activities:" in (tmp_path / "program.yaml").read_text()
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tiny_recipe_tree))
    installed("train", tmp_path / "recipe.yaml", "--run-id", "tiny")
    installed("report", "tiny", "--out", tmp_path / "report.html")
    assert "<svg" in (tmp_path / "report.html").read_text()
