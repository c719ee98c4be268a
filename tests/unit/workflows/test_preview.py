"""What is told of a run before it begins is what it will do."""

import re
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


def preview_of(tmp_path: Path, **trainer: Any) -> tuple[preview.RankMemory, tuple[str, ...]]:
    folder = language_dataset(tmp_path)
    loader = {"layout": {"type": "line", "tokens": 4096, "row_tokens": 24}}
    recipe = Recipe.model_validate(sft_recipe(folder, loader=loader, trainer=trainer))
    found = preview.preview(recipe, Dataset.open(folder), world_size=1)
    assert found.memory is not None
    return found.memory, tuple(text for text in found.warnings if "tokens fit" in text)


def test_a_line_that_is_longer_than_memory_allows_is_told_with_the_length_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preview, "smallest_gpu_bytes", lambda: 80 << 30)
    memory, notes = preview_of(tmp_path / "large")
    assert not notes
    gpu = memory.activations // 2 + 2 * memory.optimizer + memory.gradients
    monkeypatch.setattr(preview, "smallest_gpu_bytes", lambda: gpu)
    _, [note] = preview_of(tmp_path / "half")
    assert re.search(r"loader.layout.tokens=4096: .* lines of about 2\d\d\d tokens fit", note)
    assert preview_of(tmp_path / "exact", precision="float32")[1][0] != note


def test_memory_counts_the_bfloat16_copy_of_the_weights_and_its_gradient(tmp_path: Path) -> None:
    plain, _ = preview_of(tmp_path / "plain")
    copied, _ = preview_of(tmp_path / "copy", weights={"compute": "bfloat16"})
    assert copied.parameters == 1.5 * plain.parameters
    assert copied.gradients - plain.gradients == plain.parameters / 2
