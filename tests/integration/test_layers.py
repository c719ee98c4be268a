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
    retained = train_one_rank(tree, tmp_path / "kept")
    tree["method"]["model"]["checkpoint_activations"] = True
    twice = train_one_rank(tree, tmp_path / "twice")
    for number in ("loss", "gradient_norm"):
        assert [step[number] for step in twice.steps] == [step[number] for step in retained.steps], number
    differ = {
        name: f"{(twice.weights[name] - weight).abs().max():g} in {int((twice.weights[name] != weight).sum())}"
        for name, weight in retained.weights.items()
        if not torch.equal(twice.weights[name], weight)
    }
    assert not differ, "the largest difference, and in how many numbers"
