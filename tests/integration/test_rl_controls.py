"""What can be wrong with an RL run is made wrong on purpose, in the real thing, and must be found and named."""

import copy
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from assay.base.config import LoadedConfig
from assay.launch.bookkeeping import rebuild_run
from assay.launch.run import new_run
from assay.reporting.views.run import RunView, run_view
from assay.store.home import Home
from assay.training.methods.grpo.method import GrpoMethod
from one_rank import train_here
from prompt_rows import grpo_recipe, prompt_dataset

SHORT = {"max_steps": 4, "commit_every": 1}


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prompt_dataset(tmp_path_factory.mktemp("prompts"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def trained(tree: dict[str, Any], name: str = "run") -> RunView:
    run = new_run(Home.from_environment(), LoadedConfig(tree, {}), run_id=name)
    train_here(run)
    with Home.from_environment().open_ledger() as ledger:
        rebuild_run(ledger, run)
        return run_view(ledger, name)


def flags(view: RunView) -> list[list[str]]:
    """Rules that held at each commit."""
    return [[flag.rule for flag in commit.flags] for commit in view.commits]


def sample_with_the_weights_of_the_step_before(monkeypatch: pytest.MonkeyPatch) -> None:
    right, kept = GrpoMethod._answered, list[nn.Module]()

    def answered(self: GrpoMethod, model: nn.Module, *arguments: Any) -> Any:
        kept.append(copy.deepcopy(model))
        return right(self, kept[max(0, len(kept) - 2)], *arguments)

    monkeypatch.setattr(GrpoMethod, "_answered", answered)


def sample_at_temperature(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    right = GrpoMethod._answered

    def answered(self: GrpoMethod, model: nn.Module, prompts: Any, sampling: Any) -> Any:
        return right(self, model, prompts, sampling.model_copy(update={"temperature": temperature}))

    monkeypatch.setattr(GrpoMethod, "_answered", answered)


def test_a_sampler_with_the_weights_of_an_earlier_step_is_named_where_they_had_changed(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample_with_the_weights_of_the_step_before(monkeypatch)
    view = trained(grpo_recipe(dataset, tmp_path / "base", trainer=SHORT))
    [warning] = view.warnings
    assert warning.rule == "sampler apart" and "at step 2" in warning.text
    assert "in 3 of 4 steps" in warning.text and "weights of an earlier step" in warning.text
    assert flags(view) == [[], *[["sampler apart"]] * 3], "the first commit is a good one to go back to"


def test_a_sampler_at_another_temperature_is_named_at_once(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample_at_temperature(monkeypatch, 1.3)
    view = trained(grpo_recipe(dataset, tmp_path / "base", trainer=SHORT))
    [warning] = view.warnings
    assert warning.rule == "sampler apart" and "at step 1" in warning.text and "temperature" in warning.text
    assert flags(view) == [["sampler apart"]] * 4


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_sampler_that_is_the_model_is_not_flagged(precision: str, dataset: Path, tmp_path: Path) -> None:
    tree = grpo_recipe(
        dataset,
        tmp_path / "base",
        trainer={**SHORT, "precision": precision},
        method={"updates_per_rollout": 3, "sampling": {"max_tokens": 6, "temperature": 0.7}},
    )
    assert flags(trained(tree)) == [[]] * 4
