"""Pipes, devices and sockets in the place of an input file are refused at once, by every command."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from assay.base.config import read_config_file
from assay.base.errors import ConfigError, DataError
from assay.cli.main import cli, main
from assay.cli.parameters import FILE, PATH, RECIPE_OR_CHANGE, SOURCE, SOURCE_OR_RUN, SOURCE_PATH
from assay.data.dataset.raw.find import find_spans

TYPES = (FILE, RECIPE_OR_CHANGE, PATH, SOURCE, SOURCE_PATH, SOURCE_OR_RUN)


@pytest.fixture(params=["pipe", "device", "socket"])
def irregular(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    if request.param == "device":
        yield Path("/dev/zero")
    elif request.param == "pipe":
        os.mkfifo("x.csv")
        yield Path("x.csv")
    else:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind("x.csv")
            yield Path("x.csv")


@pytest.mark.parametrize("kind", TYPES)
def test_no_command_waits_for_a_file_that_never_ends(irregular: Path, kind: click.ParamType) -> None:
    with pytest.raises(DataError, match="not a regular file"):
        kind.convert(str(irregular), None, None)


def test_nor_does_who_reads_a_file_that_another_names(irregular: Path) -> None:
    with pytest.raises(DataError, match="not a regular file"):
        read_config_file(irregular, ())
    with pytest.raises(DataError, match="not a regular file"):
        find_spans([irregular], 10)


@pytest.mark.parametrize("kind", TYPES)
def test_a_link_to_a_regular_file_is_one(tmp_path: Path, kind: click.ParamType) -> None:
    (tmp_path / "file.csv").write_text("a\n1\n")
    (tmp_path / "link.csv").symlink_to(tmp_path / "file.csv")
    assert str(kind.convert(str(tmp_path / "link.csv"), None, None)) == str(tmp_path / "link.csv")


def parameters(group: click.Command) -> Iterator[tuple[str, click.Parameter]]:
    if isinstance(group, click.Group):
        for name in group.list_commands(click.Context(group)):
            command = group.get_command(click.Context(group), name)
            assert command is not None
            yield from ((f"{name} {param.name}", param) for param in command.params)
            yield from parameters(command)


def test_every_file_that_a_command_reads_is_of_these_types() -> None:
    plain = {name for name, item in parameters(cli) if type(item.type) is click.Path and item.type.file_okay}
    written = {name for name in plain if name.endswith((" out", " to", " page", " log_file"))}
    assert plain - written == {"resume scratch", "serve models"}, "folders"


@pytest.mark.parametrize(
    "command", ["triage symptoms {}", "data build {} --out d", "triage ci {}", "train {}", "eval import {}"]
)
def test_the_command_says_so_and_ends(tmp_path: Path, command: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = subprocess.run(
        [sys.executable, "-m", "assay", *command.format("pipe").split()],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "ASSAY_HOME": str(tmp_path / "home")},
    )  # fmt: skip
    assert (done.returncode, "pipe: a pipe, not a regular file" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("arguments", [["triage", "symptoms", "n" * 300], ["train", "n" * 300 + ".yaml"]])
def test_what_the_system_says_of_a_path_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "File name too long. Check the path" in capfd.readouterr().err


def test_a_change_without_a_recipe_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    with pytest.raises(SystemExit) as ended:
        main(["train", "seed=1"])
    assert ended.value.code == ConfigError.exit_code
    assert "seed=1: no such file" in capfd.readouterr().err
