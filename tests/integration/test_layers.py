"""Layers whose activations are not kept, but computed once more: less memory, and no bit that changes."""

from pathlib import Path

import pytest
import torch

from method_runs import method_recipe
from one_rank import train_one_rank


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sft", "reward", "dpo"])
def test_activations_that_are_not_kept_change_no_bit(method: str, tmp_path: Path) -> None:
    tree = method_recipe(method, tmp_path)
    tree["trainer"]["max_steps"] = 2
    kept = train_one_rank(tree, tmp_path / "kept")
    tree["method"]["model"]["checkpoint_activations"] = True
    twice = train_one_rank(tree, tmp_path / "twice")
    assert [step["loss"] for step in twice.steps] == [step["loss"] for step in kept.steps]
    assert all(torch.equal(twice.weights[name], weight) for name, weight in kept.weights.items())
