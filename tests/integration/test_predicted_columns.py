"""What a campaign is told of the columns of predictions before its first run is what a run writes."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from assay.base.config import LoadedConfig
from assay.elastic.supervisor import RestartPolicy
from assay.store.home import Home
from assay.workflows.campaign.check import predicted_columns
from assay.workflows.run import check_recipe
from method_runs import digest, method_recipe


def _written(run_dir: Path) -> list[str]:
    return pq.read_schema(max(run_dir.glob("evaluations/*/predictions.parquet"))).names


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sft", "reward", "dpo", "grpo"])
def test_a_run_writes_the_columns_that_were_foreseen(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    tree = method_recipe(method, tmp_path)
    tree["trainer"] = {**tree["trainer"], "max_steps": 2}
    digest(tree, method, RestartPolicy())
    foreseen = predicted_columns(*check_recipe(LoadedConfig(tree, {})))
    assert set(_written(Home.from_environment().run_dir(method))) == set(foreseen)


@pytest.mark.slow
def test_of_a_classifier_too(run_here: Any) -> None:
    run, _, _ = run_here()
    recipe = LoadedConfig(run.recipe, {})
    assert set(_written(Path(run.run_dir))) == set(predicted_columns(*check_recipe(recipe)))
