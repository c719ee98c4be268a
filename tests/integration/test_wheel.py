"""What is built is what a user gets: wheel and source distribution, each installed by itself, hold all that the command
needs."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dockerfile
import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RELEASE = PROJECT["version"]


def copy_sources(folder: Path) -> Path:
    """Copy what an image is built from, so that the checkout stays as it is."""
    folder.mkdir()
    for step in dockerfile.parse_file(str(ROOT / "Containerfile")):
        for name in step.value[:-1] if step.cmd == "COPY" else ():
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
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    program = f"from setuptools import build_meta; print(build_meta.build_sdist({str(folder)!r}))"
    source = copy_sources(folder / "source")
    environment = {**os.environ, "ASSAY_COMMIT": "abc1234"}
    subprocess.run([sys.executable, "-c", program], cwd=source, check=True, env=environment, capture_output=True)
    return next(folder.glob("assay-*.tar.gz"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    return install(wheel, tmp_path_factory.mktemp("installed"))


def install(wheel: Path, folder: Path) -> Callable[..., str]:
    """Install into a fresh environment; return what runs the command there, away from the checkout.

    What it needs is borrowed from this environment.
    """
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
    assert installed("--version").startswith(f"assay, version {RELEASE}")
    assert "train" in installed("--help")
    installed("plan", "new", tmp_path / "program.yaml")
    assert "activities:" in (tmp_path / "program.yaml").read_text()
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(tiny_recipe_tree))
    installed("train", tmp_path / "recipe.yaml", "--run-id", "tiny")
    installed("report", "tiny", "--out", tmp_path / "report.html")
    assert "<svg" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_source_distribution_installs_as_the_wheel_does(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    run = install(build(sdist, tmp_path / "built"), tmp_path)
    assert run("--version") == f"assay, version {RELEASE}+gabc1234\n"
    run("plan", "new", tmp_path / "program.yaml")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/src/")[2] for name in archive.getnames()}
    assert {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("assay/")} - names == set()


def test_the_container_file_is_read_by_dockers_parser_and_installs_extras_that_exist() -> None:
    steps = dockerfile.parse_file(str(ROOT / "Containerfile"))
    commands = [step.value[0] for step in steps if step.cmd == "RUN"]
    for command in commands:
        subprocess.run(["sh", "-n", "-c", command], check=True)
    (extras,) = re.findall(r"pip install .*\.\[([\w,]+)\]", " ".join(commands))
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    assert steps[-1].cmd == "ENTRYPOINT" and set(steps[-1].value) <= set(PROJECT["scripts"])
    assert [step.value[0] for step in steps if step.cmd == "USER"] == ["1000"], "it does not run as root"


def test_the_release_has_notes_and_its_way_to_upgrade() -> None:
    assert f"\n## {RELEASE}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"# Upgrade to {RELEASE}\n" in (ROOT / "docs" / "upgrades" / f"{RELEASE}.md").read_text()


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
