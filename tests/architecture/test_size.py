"""The size of each package has a budget. A commit that raises one says why."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "assay"
LINES = {
    "agents": 250,
    "api": 720,
    "base": 1_700,
    "checks": 2_710,
    "cli": 8_350,
    "dashboard": 3_350,
    "data": 9_400,
    "decision": 2_700,
    "distributed": 1_750,
    "elastic": 4_500,
    "evals": 3_000,
    "inference": 2_800,
    "integrations": 1_210,
    "launchers": 2_910,
    "models": 3_250,
    "planning": 9_120,
    "records": 5_450,
    "reporting": 17_545,
    "scoring": 2_500,
    "serving": 12_950,
    "statistics": 6_450,
    "store": 7_325,
    "throughput": 1_950,
    "trackers": 1_750,
    "training": 13_100,
    "triage": 8_005,
    "workers": 5_630,
    "workflows": 11_805,
}
"""Top-level package -> lines of Python, docstrings and blanks included."""
BENCHMARK_LINES = 11_500
MAX_CLASSES = 17.0
"""For 1,000 lines of code, without docstrings, comments and blanks."""
MAX_PUBLIC_NAMES = 56.0
"""Functions, classes and constants of modules, likewise."""


def num_lines(folder: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in folder.rglob("*.py"))


def modules() -> Iterator[tuple[ast.Module, str]]:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        yield ast.parse(text), text


def num_code_lines(module: ast.Module, text: str) -> int:
    documented: set[int] = set()
    for node in ast.walk(module):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                documented.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(line.strip()) and not line.strip().startswith("#") and row not in documented for row, line in lines)


def public_names(module: ast.Module) -> Iterator[str]:
    for statement in module.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


@pytest.mark.parametrize("package", LINES)
def test_a_package_stays_within_its_lines(package: str) -> None:
    assert num_lines(SOURCE / package) <= LINES[package]


def test_every_package_has_a_budget() -> None:
    packages = {path.name for path in SOURCE.iterdir() if any(path.glob("*.py"))}
    assert packages == set(LINES)


def test_benchmarks_stay_within_their_lines() -> None:
    assert num_lines(ROOT / "benchmarks") <= BENCHMARK_LINES


def test_concepts_are_few() -> None:
    code = classes = names = 0
    for module, text in modules():
        code += num_code_lines(module, text)
        classes += sum(isinstance(node, ast.ClassDef) for node in ast.walk(module))
        names += sum(not name.startswith("_") for name in public_names(module))
    assert 1000 * classes / code <= MAX_CLASSES
    assert 1000 * names / code <= MAX_PUBLIC_NAMES
