"""What is told of a run before it begins is what it will do."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.data.dataset.dataset import Dataset
from assay.training.recipe import Recipe
from assay.training.trainer.config import TrainerConfig
from assay.training.trainer.trainer import CommitSchedule
from assay.workflows import preview
from assay.workflows.preview import _num_due
from clocks import ManualClock
from language_rows import language_dataset, sft_recipe


@given(num_steps=st.integers(1, 60), commit_every=st.integers(1, 70), evaluate_every=st.integers(1, 70) | st.none())
def test_commits_and_evaluations_fall_where_training_makes_them(
    num_steps: int, commit_every: int, evaluate_every: int | None
) -> None:
    config = TrainerConfig(commit_every=commit_every, evaluate_every=evaluate_every)
    schedule = CommitSchedule(config, ManualClock(), failure_s=1e9)
    steps = range(1, num_steps + 1)
    assert _num_due(num_steps, commit_every, evaluate_every) == sum(schedule.is_due(step, num_steps) for step in steps)
    evaluated = {step for step in steps if evaluate_every and step % evaluate_every == 0} | {num_steps}
    assert _num_due(num_steps, evaluate_every) == len(evaluated)


@pytest.mark.parametrize(
    ("loader", "has_gpu", "note"),
    [
        ({}, False, None),
        ({}, True, "With {type: line, tokens: 8192, row_tokens: 24} a pass"),
        ({"layout": {"type": "line", "tokens": 64, "row_tokens": 24}}, True, None),
        ({"layout": {"type": "line", "tokens": 64}}, True, "use loader.layout.row_tokens=24"),
    ],
)
def test_a_line_is_advised_where_there_is_a_gpu(
    loader: dict[str, Any], has_gpu: bool, note: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preview, "smallest_gpu_bytes", lambda: 80 << 30 if has_gpu else None)
    folder = language_dataset(tmp_path)
    recipe = Recipe.model_validate(sft_recipe(folder, loader=loader))
    found = preview.preview(recipe, Dataset.open(folder), world_size=1).warnings
    notes = [text for text in found if text.startswith("loader.layout")]
    assert len(notes) == (note is not None)
    assert note is None or note in notes[0]
