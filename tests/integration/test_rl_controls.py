"""What can be wrong with an RL run is made wrong on purpose, in the real thing, and must be found and named."""

import copy
import socket
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from assay.base.config import LoadedConfig
from assay.base.errors import AssayError
from assay.reporting.views.runs.run import RunView, run_view
from assay.store.home import Home
from assay.store.metrics.recorded import recorded_steps
from assay.training.methods.grpo.method import GrpoMethod
from assay.workflows.bookkeeping import rebuild_run
from assay.workflows.run import create_run
from in_process import AssayAt
from integration.conftest import PlantedAssay
from one_rank import train_here
from prompt_rows import grpo_recipe, prompt_dataset
from variants import slow

SHORT = {"max_steps": 4, "commit_every": 1}


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prompt_dataset(tmp_path_factory.mktemp("prompts"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def trained(tree: dict[str, Any], name: str = "run") -> RunView:
    run = create_run(Home.from_environment(), LoadedConfig(tree, {}), run_id=name)
    train_here(run)
    with Home.from_environment().open_ledger() as ledger:
        rebuild_run(ledger, run)
        return run_view(ledger, name)


def flags(view: RunView) -> list[list[str]]:
    """Rules that held at each commit."""
    return [[flag.rule for flag in commit.flags] for commit in view.commits]


def sample_with_the_weights_of_the_step_before(monkeypatch: pytest.MonkeyPatch) -> None:
    right, retained = GrpoMethod._generate, list[nn.Module]()

    def sample(self: GrpoMethod, model: nn.Module, *arguments: Any) -> Any:
        retained.append(copy.deepcopy(model))
        return right(self, retained[max(0, len(retained) - 2)], *arguments)

    monkeypatch.setattr(GrpoMethod, "_generate", sample)


def sample_at_temperature(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    right = GrpoMethod._generate

    def sample(self: GrpoMethod, model: nn.Module, prompts: Any, sampling: Any, *more: Any) -> Any:
        return right(self, model, prompts, sampling.model_copy(update={"temperature": temperature}), *more)

    monkeypatch.setattr(GrpoMethod, "_generate", sample)


@pytest.mark.slow
def test_a_sampler_with_the_weights_of_an_earlier_step_is_named_where_they_had_changed(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample_with_the_weights_of_the_step_before(monkeypatch)
    view = trained(grpo_recipe(dataset, tmp_path / "base", trainer=SHORT))
    [warning] = view.warnings
    assert warning.rule == "sampler mismatch" and "at step 2" in warning.text
    assert "in 3 of 4 steps" in warning.text and "sampled with stale weights" in warning.text
    assert flags(view) == [[], *[["sampler mismatch"]] * 3], "the first commit is a good one to go back to"


def test_a_sampler_at_another_temperature_is_named_at_once(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample_at_temperature(monkeypatch, 1.3)
    view = trained(grpo_recipe(dataset, tmp_path / "base", trainer=SHORT))
    [warning] = view.warnings
    assert warning.rule == "sampler mismatch" and "at step 1" in warning.text and "temperature" in warning.text
    assert flags(view) == [["sampler mismatch"]] * 4


@pytest.mark.parametrize("precision", ["bfloat16", *slow("float32")])
def test_a_sampler_that_is_the_model_is_not_flagged(precision: str, dataset: Path, tmp_path: Path) -> None:
    tree = grpo_recipe(
        dataset,
        tmp_path / "base",
        trainer={**SHORT, "precision": precision},
        method={"updates_per_rollout": 3, "sampling": {"max_tokens": 6, "temperature": 0.7}},
    )
    assert flags(trained(tree)) == [[]] * 4


@pytest.mark.slow
def test_a_rank_whose_decoding_flips_bits_is_named_with_its_step_and_only_a_spot_check_sees_it(
    dataset: Path, tmp_path: Path
) -> None:
    trainer = {"max_steps": 6, "commit_every": 2, "spot_check_every": 4}
    # As the rows lie: the twentieth call is then of a lane of rank 1 itself, and not of one that it checks.
    tree = grpo_recipe(dataset, tmp_path / "base", trainer=trainer, loader={"shuffle_radius_windows": 0})
    assay = PlantedAssay(tmp_path, tree)
    undisturbed = AssayAt(assay.home).json(*assay.train_command("undisturbed", 1))["weights_digest"]
    assay.plant("flipped_token", FLIP_FROM_CALL="20", FLIP_HAPPENED=str(tmp_path / "flipped"))
    shown = assay.train("flipped", 2)
    assert (tmp_path / "flipped").exists()
    [first, second] = shown["attempts"]
    [suspect] = first["suspects"]
    assert (suspect["rank"], suspect["step"], suspect["lane"], suspect["is_certain"]) == (1, 4, 2, True)
    assert f"wrong arithmetic at step 4: rank 1 on node {socket.gethostname()}" in first["reason"]
    assert (second["start_step"], second["suspects"], shown["weights_digest"]) == (0, [], undisturbed)
    # Without the check the same bits are learned, and nobody is named.
    assay.plant("flipped_token", FLIP_FROM_CALL="20", FLIP_HAPPENED=str(tmp_path / "again"))
    shown = assay.train("unseen", 2, spot_check_every=None)
    assert (tmp_path / "again").exists() and shown["weights_digest"] != undisturbed
    assert [item["suspects"] for item in shown["attempts"]] == [[]]
    # Two of these prompts stand on both sides of the split: that is said, and nothing of the numbers.
    assert [item["rule"] for item in shown["warnings"]] == ["leaking rows"]


@pytest.mark.slow
def test_a_grader_that_fails_on_a_twentieth_of_the_answers_is_named_by_its_kind_and_stops_what_allows_less(
    dataset: Path, tmp_path: Path
) -> None:
    """Those answers leave their groups: what is learned is as many fewer."""
    source = f"def grade(sample, item):\n    assert {FAILS}\n    return float('t1' in sample['output_text'])"
    rewards = [{"grader": {"type": "python", "name": "breaks", "source": source}}]
    method: dict[str, Any] = {"rewards": rewards, "max_reward_failures": 0.5}
    view = trained(grpo_recipe(dataset, tmp_path / "base", trainer={"max_steps": 8}, method=method))
    output = [warning.text for warning in view.warnings if warning.rule == "graders fail"]
    share = view.metrics["failed_grades_python_grader_runtime_error"]
    steps = recorded_steps(Path(view.run_dir))
    failed = [step.values["failed_grades"] for step in steps.values()]
    assert 0.02 < sum(failed) / len(failed) < 0.1 and share.num_points == 8
    assert output and "python_grader_runtime_error" in output[0]
    strict = grpo_recipe(dataset, tmp_path / "base", method={**method, "max_reward_failures": 0.01})
    with pytest.raises(AssayError, match=r"of the rollouts got no reward \(\d.*% python_grader_runtime_error; e\.g\. "):
        trained(strict, "strict")


FAILS = "sum(map(ord, sample['output_text'])) % 20"
"""0 for about every twentieth answer."""
