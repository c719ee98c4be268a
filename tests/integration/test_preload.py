"""A rank that is forked imports nothing more: every restart would pay for it, on every rank."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from assay.training.methods.registry import METHODS

from .conftest import tiny_recipe

_TRAIN = """
import json, sys
from pathlib import Path
import assay.elastic.preload
from one_rank import train_one_rank  # what tests need besides is imported with it
before = set(sys.modules)
train_one_rank(json.loads(sys.argv[1]), Path(sys.argv[2]))
print(json.dumps([sorted(set(sys.modules) - before), sorted(before)]))
"""
_WHEN_FIRST_USED = ("assay.statistics.", "torch.")
"""What the end of a run needs, and what torch imports at its first step and its first commit."""
_OF_NO_USE = {
    "duckdb",
    "matplotlib",
    "ortools",
    "pandas",
    "rich",
    "scipy",
    "sklearn",
    "sqlalchemy",
    "statsmodels",
}
"""Each would put off every first step."""


@pytest.mark.slow
def test_all_that_a_rank_imports_has_been_imported_before_the_fork(tiny_dataset: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe(tiny_dataset, trainer__max_steps=2, trainer__commit_every=1).values
    command = [sys.executable, "-c", _TRAIN, json.dumps(recipe), str(tmp_path)]
    paths = os.pathsep.join(sys.path)
    output = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
    ).stdout
    imported, preloaded = json.loads(output.splitlines()[-1])
    assert [name for name in imported if not name.startswith(_WHEN_FIRST_USED)] == []
    assert _OF_NO_USE & set(preloaded) == set()
    assert {f"assay.training.methods.{entry.folder}.method" for entry in METHODS} <= set(preloaded)
