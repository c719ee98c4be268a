"""The tree is the first document: these hold whatever is added to it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "assay"
MODULES = sorted(SRC.rglob("*.py"))
MAX_LINES = 70


@pytest.mark.parametrize("path", [p for p in MODULES if p.name == "__init__.py"], ids=lambda p: p.parent.name)
def test_an_init_holds_one_docstring_and_nothing_else(path: Path) -> None:
    body = ast.parse(path.read_text()).body
    assert len(body) == 1
    assert isinstance(body[0], ast.Expr)


def test_no_module_is_a_drawer_for_odds_and_ends() -> None:
    assert not [path for path in MODULES if path.stem in ("utils", "util", "common", "helpers", "misc")]


def test_every_module_says_what_it_decides() -> None:
    assert not [path for path in MODULES if not ast.get_docstring(ast.parse(path.read_text()))]


def test_a_function_fits_on_a_screen() -> None:
    long = [
        f"{path.name}:{node.lineno} {node.name}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno + 1 > MAX_LINES
    ]
    assert not long


def test_imports_point_down_only() -> None:
    """The contracts of pyproject.toml, which a line of the tree and 'no torch here' are written as."""
    program = Path(sys.executable).with_name("lint-imports")
    checked = subprocess.run(
        [program, "--config", SRC.parents[1] / "pyproject.toml", "--no-cache"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout
