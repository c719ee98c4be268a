"""The pages of the documentation and the reference of `import assay` are built without a warning, and are whole."""

import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import assay

ROOT = Path(__file__).parents[2]
REFERENCE = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in assay.__all__:
        found = getattr(assay, name)
        if not inspect.isclass(found):
            yield name, found
        elif found.__module__.startswith(("assay.api", "assay.integrations")):
            members = inspect.getmembers(found, lambda member: inspect.isfunction(member) or inspect.ismethod(member))
            yield from ((f"{name}.{key}", one) for key, one in members if not key.startswith("_") or key == "__init__")


@pytest.mark.parametrize("name", assay.__all__)
def test_each_public_name_has_its_place_in_the_reference(name: str) -> None:
    assert re.search(rf"^::: assay\.\S+\.{name}$", REFERENCE, re.M)


@pytest.mark.parametrize(("name", "function"), [*functions()], ids=lambda one: one if isinstance(one, str) else "")
def test_each_parameter_is_documented(name: str, function: Callable[..., Any]) -> None:
    explained = set(re.findall(r"\w+", inspect.getdoc(function) or ""))
    parameters = set(inspect.signature(function).parameters) - {"self"}
    assert parameters - explained == set(), name


@pytest.mark.slow
def test_pages_are_built_without_a_dead_link(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "reference" / "run.html").read_text()
    assert "Prove from receipts that each row was learned exactly once" in page
