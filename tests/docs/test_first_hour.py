"""docs/first-hour.md, line by line: its files are written, its commands run, in an empty folder."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from in_process import AssayAt
from variants import soaked

PAGE = Path(__file__).parents[2] / "docs" / "first-hour.md"
FILE = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.M | re.S)
COMMAND = re.compile(r"^    ((?:assay|python) .*)$", re.M)


def steps() -> Iterator[tuple[str, str]]:
    """A file's name and what it holds, or a command and nothing; as they stand on the page."""
    text = PAGE.read_text(encoding="utf-8")
    found = [(match.start(), (match[1], match[2])) for match in FILE.finditer(text)]
    spans = [match.span() for match in FILE.finditer(text)]
    found += [
        (match.start(), (match[1].split("  #")[0], ""))
        for match in COMMAND.finditer(text)
        if not any(start < match.start() < stop for start, stop in spans)
    ]
    return (step for _, step in sorted(found))


def walk(folder: Path, *, max_steps: int | None) -> None:
    """Do what the page says; the recipes that it makes end after `max_steps`."""
    assay = AssayAt(folder / "runs")
    for step, content in steps():
        if content:
            (folder / step).write_text(content, encoding="utf-8")
            continue
        program, *arguments = shlex.split(step)
        if program == "python":
            subprocess.run([sys.executable, *arguments], cwd=folder, check=True)
            continue
        assert "lacks power" not in assay(*arguments).err, "the first decision that a reader sees can be a yes"
        if max_steps is not None and step.startswith("assay train new"):
            recipe = folder / arguments[-1]
            text, num_trainers = re.subn(
                r"^trainer:$", f"trainer:\n  max_steps: {max_steps}", recipe.read_text(), flags=re.M
            )
            assert num_trainers == 1
            recipe.write_text(text)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("max_steps", [24, *soaked(None)])
def test_the_page_leads_from_rows_to_a_memo(
    max_steps: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    walk(tmp_path, max_steps=max_steps)
    recipe = (tmp_path / "recipe.yaml").read_text()
    assert "names: [scipy, sympy, torch]" in recipe and "any number of workers up to 8" in recipe
    assert "Class by class" in (tmp_path / "first.html").read_text()
    assert "Predicted and true" in (tmp_path / "lines.html").read_text()
    memo = next((tmp_path / "runs").rglob("memo*.html")).read_text()
    assert "accuracy" in memo
    assert max_steps is not None or "Scale faster" in memo
