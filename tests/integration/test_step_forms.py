"""Runs whose steps have the form that they have on a GPU, and weights that are computed with in bfloat16.

On a CPU, a captured pass is a plain call on the graph's input buffers. Real processes are killed and resized.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.base.errors import ConfigError
from assay.elastic.faults import FaultPlan
from assay.elastic.supervisor import RestartPolicy
from assay.evals.commit_model import load_committed
from assay.records.replay import ReplayReport
from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.metrics.recorded import recorded_steps
from assay.store.objects import open_store
from assay.training.checkpoint.saver import Saver
from assay.training.recipe import Recipe
from assay.training.replay.request import ReplayRequest
from assay.training.rollouts.source import RolloutMethod
from assay.training.trainer import context as context_module
from assay.training.trainer.context import RankContext, StepForm
from assay.training.trainer.step import Stepper
from assay.workflows.replay import replay
from assay.workflows.run import check_parallel
from method_runs import digest, method_recipe
from one_rank import one_rank_run, train_here, train_one_rank
from variants import slow

DIED_AT = 5


class DiedError(Exception):
    """Stands for the death of a rank."""


def form_of_a_gpu(context: RankContext, *, times_lanes: bool) -> StepForm:
    return StepForm(True, lambda compute: compute, defers=not isinstance(context.method, RolloutMethod))


def recipe(method: str, folder: Path, *, compute: str = "float32") -> dict[str, Any]:
    """Every other step is committed and checked."""
    tree = method_recipe(method, folder)
    tree["trainer"] |= {"commit_every": 2, "spot_check_every": 2, "max_steps": 8}
    if compute != "float32":
        tree["trainer"]["weights"] = {"compute": compute}
    return tree


def log_of(run: Run) -> CommitLog:
    return CommitLog(open_store(run.store_url))


def weights_of(run: Run) -> str:
    finished = log_of(run).finished()
    assert finished is not None
    return finished.weights_digest


def trained(tree: dict[str, Any], folder: Path) -> Run:
    train_one_rank(tree, folder)
    return one_rank_run(tree, folder)


def dies_and_resumes(tree: dict[str, Any], folder: Path) -> Run:
    """Train until a step is being made, and then from the last commit."""
    run, start, begin = one_rank_run(tree, folder), Stepper.start, Saver.begin

    def dying(stepper: Stepper, share: Any, **options: Any) -> Any:
        if options["step"] == DIED_AT:
            raise DiedError
        return start(stepper, share, **options)

    def committing(saver: Saver, **options: Any) -> None:
        begin(saver, **options)
        saver.wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stepper, "start", dying)
        patch.setattr(Saver, "begin", committing)
        with pytest.raises(DiedError):
            train_here(run)
    train_here(run)
    return run


def steps_of(run: Run) -> dict[int, dict[str, float]]:
    names = ("loss", "gradient_norm", "gradient_digest", "spot_check_digest")
    recorded = recorded_steps(Path(run.run_dir))
    return {step: {name: of.values[name] for name in names if name in of.values} for step, of in recorded.items()}


def replayed(run: Run, step: int) -> ReplayReport:
    return replay(run, log_of(run), ReplayRequest(step=step))


def test_passes_over_lines_are_one_captured_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = recipe("sft", tmp_path)
    tree["loader"]["layout"] = {"type": "line", "tokens": 256}
    plain = trained(tree, tmp_path / "plain")
    calls: list[str] = []

    def capture(compute: Callable[[], None]) -> Callable[[], None]:
        calls.append("captured")
        return lambda: (calls.append("replayed"), compute())[1]

    def form(context: RankContext, *, times_lanes: bool) -> StepForm:
        return form_of_a_gpu(context, times_lanes=times_lanes)._replace(capture=capture)

    monkeypatch.setattr(context_module, "step_form", form)
    ahead = trained(tree, tmp_path / "ahead")
    assert weights_of(ahead) == weights_of(plain) and steps_of(ahead) == steps_of(plain)
    num_passes = tree["loader"]["lanes"] * 8
    assert (calls.count("captured"), calls.count("replayed")) == (1, num_passes - 2)


@pytest.mark.parametrize("case", ["sft", *slow("dpo", "reward", "grpo")], ids=str)
def test_a_run_in_the_form_of_a_gpu_dies_resumes_and_replays_with_the_bits_of_a_plain_one(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = recipe(case, tmp_path)
    plain = trained(tree, tmp_path / "plain")
    monkeypatch.setattr(context_module, "step_form", form_of_a_gpu)
    ahead = dies_and_resumes(tree, tmp_path / "ahead")
    assert weights_of(ahead) == weights_of(plain) and steps_of(ahead) == steps_of(plain)
    assert replayed(plain, 5).verdict == "equal"
    monkeypatch.undo()
    assert replayed(ahead, 6).verdict == "equal"


def test_commits_of_a_bfloat16_copy_hold_float32_weights_that_bfloat16_cannot(tmp_path: Path) -> None:
    tree = recipe("sft", tmp_path)
    plain = trained(tree, tmp_path / "plain")
    copied = trained({**tree, "trainer": {**tree["trainer"], "weights": {"compute": "bfloat16"}}}, tmp_path / "copied")
    assert "weights" not in plain.recipe["trainer"] and copied.recipe["trainer"]["weights"] == {"compute": "bfloat16"}
    losses = [[step["loss"] for step in steps_of(run).values()] for run in (plain, copied)]
    assert losses[0] != losses[1] and losses[0] == pytest.approx(losses[1], rel=0.02)
    weights = load_committed(copied, log_of(copied).commits()[-1], log_of(copied).store).state_dict()
    assert {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()} == {torch.float32}
    assert any(not torch.equal(tensor, tensor.bfloat16().float()) for tensor in weights.values())


@pytest.mark.parametrize("case", ["sft", *slow("dpo", "reward", "grpo")], ids=str)
def test_a_bfloat16_copy_is_made_again_when_a_run_resumes_or_replays(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = recipe(case, tmp_path, compute="bfloat16")
    undisturbed = trained(tree, tmp_path / "undisturbed")
    monkeypatch.setattr(context_module, "step_form", form_of_a_gpu)
    resumed = dies_and_resumes(tree, tmp_path / "resumed")
    assert weights_of(resumed) == weights_of(undisturbed) and steps_of(resumed) == steps_of(undisturbed)
    assert replayed(undisturbed, 6).verdict == replayed(resumed, 5).verdict == "equal"


def test_ranks_that_are_killed_and_resized_compute_in_bfloat16_as_one_rank_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    tree = recipe("sft", tmp_path, compute="bfloat16")
    kills = [{"type": "kill", "attempt": attempt, "step": step} for attempt, step in ((1, 3), (2, 6))]
    policy = RestartPolicy(
        world_sizes=(2, 4, 1), parallel=("ddp",) * 3, faults=FaultPlan.model_validate({"faults": kills})
    )
    assert digest(tree, "killed", policy, world_size=2) == weights_of(trained(tree, tmp_path / "alone"))


def test_a_bfloat16_copy_does_not_go_with_sharded_weights(tmp_path: Path) -> None:
    chosen = Recipe.model_validate(recipe("sft", tmp_path, compute="bfloat16"))
    check_parallel(chosen, ("ddp",))
    with pytest.raises(ConfigError, match=r"fsdp2 shards the weights, and trainer\.weights\.compute=bfloat16 copies"):
        check_parallel(chosen, ("ddp", "fsdp2"))
