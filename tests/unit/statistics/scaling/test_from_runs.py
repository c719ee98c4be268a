"""Runs on record become points: parameters of the recipe, tokens that were learned for good, held-out loss."""

from pathlib import Path

import pytest

from assay.base.errors import DataError
from assay.records.evaluation import ClassifierEvaluation, ClassifierMetrics, Estimate
from assay.records.run import Attempt, Run
from assay.statistics.scaling.from_runs import points_of_runs
from assay.store.ledger.ledger import Ledger, open_ledger
from assay.store.metrics.fold import fold_run
from assay.store.metrics.segment import SegmentWriter, segment_path
from assay.training.recipe import Recipe, recipe_sha256
from clocks import ManualClock
from machine import MACHINE
from tiny_recipe import tiny_recipe


def record(ledger: Ledger, home: Path, run_id: str, *, width: int, loss: float | None, fraction: float = 0.1) -> Recipe:
    """A run of six steps with 100 tokens each, evaluated at step 5."""
    encoder = {"type": "new", "vocab_size": 99, "hidden_size": width}
    data = {"dataset": "d", "split": {"type": "hash", "validation_fraction": fraction}}
    recipe = Recipe.model_validate(tiny_recipe(data=data, method={"encoder": encoder}))
    run = Run(
        run_id=run_id,
        created_s=0.0,
        recipe=recipe.model_dump(mode="json"),
        recipe_sha256=recipe_sha256(recipe.model_dump(mode="json"), "d"),
        dataset_fingerprint="d",
        code_version="0",
        run_dir=str(home / run_id),
        store_url="memory:///",
        num_steps=10,
    )
    ledger.record_run(run)
    ledger.record_attempt(Attempt(run_id=run_id, attempt=1, world_size=1, start_step=0, started_s=0.0, **MACHINE))
    path = segment_path(Path(run.run_dir), 1, 0)
    writer = SegmentWriter(path, run_id=run_id, attempt=1, rank=0, clock=ManualClock(1.8e9))
    for step in range(1, 7):
        writer.log(step, {"tokens": 100.0})
    writer.close()
    fold_run(ledger, run)
    if loss is not None:
        ledger.record_evaluation(evaluation(run_id, loss))
    return recipe


def evaluation(run_id: str, loss: float) -> ClassifierEvaluation:
    metrics = ClassifierMetrics(
        num_rows=50,
        num_positive=20,
        auc=None,
        average_precision=None,
        log_loss=Estimate(value=loss),
        expected_calibration_error=0.0,
        calibration=(),
    )
    return ClassifierEvaluation(
        run_id=run_id,
        step=5,
        weights_digest="w",
        dataset_fingerprint="d",
        split="validation",
        overall=metrics,
        slices=(),
        predictions_sha256="p",
    )


@pytest.fixture
def ledger(tmp_path: Path):
    with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as opened:
        yield opened


def test_a_run_is_a_point(ledger, tmp_path):
    recipes = [
        record(ledger, tmp_path, "small", width=8, loss=0.6),
        record(ledger, tmp_path, "large", width=16, loss=0.5),
    ]
    points = points_of_runs(ledger, ["small", "large"])
    assert points.loss.tolist() == [0.6, 0.5]
    assert points.variables["tokens"].tolist() == [500.0, 500.0]
    assert points.variables["parameters"].tolist() == [recipe.method.num_parameters() for recipe in recipes]


def test_a_run_without_a_held_out_loss_is_refused(ledger, tmp_path):
    record(ledger, tmp_path, "a", width=8, loss=None)
    with pytest.raises(DataError, match="run a has not been evaluated"):
        points_of_runs(ledger, ["a"])


def test_losses_on_different_splits_do_not_make_one_law(ledger, tmp_path):
    record(ledger, tmp_path, "a", width=8, loss=0.6)
    record(ledger, tmp_path, "b", width=16, loss=0.5, fraction=0.2)
    with pytest.raises(DataError, match="2 splits"):
        points_of_runs(ledger, ["a", "b"])
