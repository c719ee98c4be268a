from pathlib import Path

import pytest

from assay.records.run import Run
from assay.training.recipe import recipe_sha256
from tiny_recipe import tiny_recipe


@pytest.fixture
def run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Named `long`, with three threads a rank, in a home whose name has a space; nothing of it was written."""
    home = tmp_path / "the runs"
    monkeypatch.setenv("ASSAY_HOME", str(home))
    data = {"dataset": str(tmp_path / "dataset"), "split": {"type": "hash", "validation_fraction": 0.1}}
    recipe = tiny_recipe(trainer={"threads_per_rank": 3}, data=data)
    folder = str(home / "long")
    changed = {"run_id": "long", "recipe": recipe, "recipe_sha256": recipe_sha256(recipe, "")}
    return run.model_copy(update={**changed, "run_dir": folder, "store_url": folder})
