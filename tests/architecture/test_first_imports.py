"""A command that only has to say that something is not there says so before it has imported anything large.

Times differ between machines; what is imported does not. `benchmarks/commands.py` measures the times.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest

from assay.cli.main import cli
from assay.records.run import Run
from assay.store.home import Home
from commands import NEEDS_NOTHING, NOTHING_THERE
from tiny_recipe import tiny_recipe

LARGE = {
    "duckdb", "jinja2", "numpy", "obstore", "ortools", "pandas", "pyarrow", "rich", "safetensors", "scipy",
    "sklearn", "sqlalchemy", "statsmodels", "tokenizers", "torch", "transformers",
}  # fmt: skip

LOOK = """
import io, json, os, sys
from assay.cli.main import main
large = set(json.loads(sys.argv[1]))
for command in json.loads(sys.argv[2]):
    ours, theirs = os.pipe()
    if os.fork() == 0:
        code, sys.stdout, sys.stderr = 0, io.StringIO(), io.StringIO()
        try:
            main(command.split())
        except SystemExit as ended:
            code = ended.code
        found = sorted(large & set(sys.modules))
        os.write(theirs, json.dumps([command, code, sys.stderr.getvalue()[-300:], found]).encode())
        os._exit(0)
    os.close(theirs)
    sys.stdout.write(os.fdopen(ours).read() + "\\n")
    os.wait()
"""
"""Each command in a process that has imported the command line and no more."""


def test_every_command_is_asked_for_something_that_is_not_there() -> None:
    asked = {*NOTHING_THERE, *NEEDS_NOTHING}
    leaves = set(_leaves(cli, []))
    assert {leaf for leaf in leaves if not any(f"{each} ".startswith(f"{leaf} ") for each in asked)} == set()


def _leaves(command: click.Command, path: list[str]) -> list[str]:
    if not isinstance(command, click.Group):
        return [" ".join(path)]
    context = click.Context(command)
    return [
        leaf
        for name in command.list_commands(context)
        if (child := command.get_command(context, name))
        for leaf in _leaves(child, [*path, name])
    ]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with one run, so that there is a ledger to look in."""
    run = Run(
        run_id="tiny-1", created_s=0.0, recipe=tiny_recipe(), recipe_sha256="", dataset_fingerprint="",
        code_version="", run_dir=str(tmp_path / "tiny-1"), store_url=str(tmp_path / "tiny-1"),
    )  # fmt: skip
    with Home.at(tmp_path).open_ledger() as ledger:
        ledger.record_run(run)
    return tmp_path


def test_what_is_not_there_is_said_before_anything_large_is_imported(home: Path) -> None:
    found = _answers(home, NOTHING_THERE)
    assert [command for command, *_ in found] == list(NOTHING_THERE)
    assert [each for each in found if each[1] != 2] == []
    assert [(command, modules) for command, _, _, modules in found if modules] == []


def test_the_list_of_runs_imports_nothing_large(home: Path) -> None:
    assert _answers(home, ("runs", "runs --json")) == [["runs", 0, "", []], ["runs --json", 0, "", []]]


def test_a_run_is_shown_without_what_computes(home: Path) -> None:
    ((_, code, said, modules),) = _answers(home, ("show tiny-1",))
    assert (code, said, set(modules) - {"numpy", "obstore", "rich"}) == (0, "", set())


def _answers(home: Path, commands: Sequence[str]) -> list[Any]:
    """For each: the command, its exit code, the end of what it said, and what it imported of `LARGE`."""
    answers = subprocess.run(
        [sys.executable, "-c", LOOK, json.dumps(sorted(LARGE)), json.dumps(commands)],
        env={**os.environ, "ASSAY_HOME": str(home)},
        cwd=home,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [json.loads(line) for line in answers.splitlines()]
