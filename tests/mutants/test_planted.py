"""Each planted mistake alone fails a quick test: a copy of the sources per mistake, and pytest on it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mutants.planted import PLANTED, Planted

CHECKOUT = Path(__file__).parents[2]
UNIT = Path("tests/unit")
FAILED_TESTS = 1
"""pytest's exit code; others say that it could not run them."""


def planted_source(mistake: Planted, folder: Path) -> Path:
    """A copy of `src` with the mistake in it."""
    source = folder / "src"
    shutil.copytree(CHECKOUT / "src", source, ignore=shutil.ignore_patterns("*.pyc.*", "*.egg-info"))
    path = source / "assay" / mistake.file
    text = path.read_text(encoding="utf-8")
    assert text.count(mistake.right) == 1, (
        f"'{mistake.name}': {mistake.file} holds {mistake.right!r} {text.count(mistake.right)} times. The code "
        "has changed: plant the same mistake in what stands there now (tests/mutants/planted.py)."
    )
    path.write_text(text.replace(mistake.right, mistake.wrong), encoding="utf-8")
    return source


@pytest.mark.slow
@pytest.mark.parametrize("mistake", PLANTED, ids=lambda mistake: mistake.name)
def test_a_planted_mistake_fails_a_quick_test(mistake: Planted, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(planted_source(mistake, tmp_path))}
    tests = [str(CHECKOUT / UNIT / name) for name in mistake.tests]
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--show-capture=no", "--tb=line"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=CHECKOUT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == FAILED_TESTS, done.stdout + done.stderr
