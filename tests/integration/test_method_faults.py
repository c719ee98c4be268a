"""What goes wrong under SFT, reward models and DPO is named as it is under the classifier: bad rows, a rank
that computes wrongly, an operator with a wrong corner."""

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from agreement.tiny_models import save_tiny
from assay.base.errors import LossNotFiniteError
from assay.records.replay import ReplayReport
from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.metrics.recorded import recorded_steps
from assay.store.objects import open_store
from assay.training.replay.request import ReplayRequest
from assay.triage.explain import explain
from assay.workflows.replay import replay
from integration.conftest import PlantedAssay
from one_rank import one_rank_run, train_one_rank
from preference_rows import FIRST_DIGIT, SEPARATOR, preference_recipe, small_model, write_pairs
from variants import slow, soaked

NUM_ROWS, GROUP_ROWS = 640, 16
BAD_GROUP = 25
"""Of these rows, chosen and rejected are exchanged."""


def up_and_down(row: int, rng: np.random.Generator) -> dict[str, Any]:
    """Digits that go on upwards are chosen, and what is learned; downwards, rejected."""
    count, start = int(rng.integers(3, 7)), int(rng.integers(0, 10))
    turned = [FIRST_DIGIT + (start + location) % 10 for location in range(count)]
    up, down = (
        [*turned, SEPARATOR, *(FIRST_DIGIT + (start + sign * location) % 10 for location in range(1, count + 1))]
        for sign in (1, -1)
    )
    if row // GROUP_ROWS == BAD_GROUP:
        up, down = down, up
    spans = {"trained_spans": [count + 1, 2 * count + 1]}
    return {"input_ids": up, "rejected_ids": down, "prompt_tokens": count + 1, "margin": 0.0, **spans}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    return write_pairs(tmp_path_factory.mktemp("pairs"), [up_and_down(row, rng) for row in range(NUM_ROWS)])


def method_tree(method: str, folder: Path) -> dict[str, Any]:
    if method != "dpo":
        keys = {"train_on": "spans"} if method == "sft" else {}
        return {"type": method, "model": small_model(), **keys}
    base = {"type": "pretrained", "path": str(save_tiny(LlamaForCausalLM, folder / "base", seed=3))}
    return {"type": "dpo", "model": base, "loss": {"type": "sigmoid", "beta": 0.5}}


def recipe(method: str, pairs: Path, folder: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    split = {"split": {"type": "hash", "validation_fraction": 0.05}}
    # As they lie: what is planted in a row group comes in a step or two.
    loader = {"shuffle_radius_windows": 0}
    return preference_recipe(pairs, method_tree(method, folder), data=split, loader=loader, **sections)


def spike(steps: list[dict[str, float]], *, after: int) -> int:
    """The step whose loss rises most over the median of the eight before it."""
    losses = [step["loss"] for step in steps]
    rises = [losses[location] / np.median(losses[location - 8 : location]) for location in range(after, len(losses))]
    return after + 1 + int(np.argmax(rises))


def replayed(run: Run, request: ReplayRequest) -> ReplayReport:
    return replay(run, CommitLog(open_store(run.store_url)), request)


@pytest.mark.parametrize("method", [*slow("sft", "dpo"), *soaked("reward")])
def test_rows_that_teach_the_contrary_are_bad_data_and_named(method: str, pairs: Path, tmp_path: Path) -> None:
    trainer = {"epochs": 2, "max_steps": None, "commit_every": 20, "optimizer": {"learning_rate": 1e-2}}
    tree, folder = recipe(method, pairs, tmp_path, trainer=trainer), tmp_path / "run"
    step = spike(train_one_rank(tree, folder).steps, after=20)
    report = replayed(one_rank_run(tree, folder), ReplayRequest(step=step, search_rows=True))
    output = explain(report, recorded_steps(folder))
    assert (report.verdict, output.cause) == ("equal", "bad data"), output
    assert report.rows is not None
    worst = sorted(report.rows.rows, key=lambda row: row.loss)[-3:]
    assert {row.row_id // GROUP_ROWS for row in worst} == {BAD_GROUP}
    assert report.rows.loss_without < 0.5 * report.rows.step_loss


@pytest.fixture
def wrong_mean() -> Iterator[Callable[[str], None]]:
    """`wrong_mean(symptom)`: from now on a mean over states mistreats the tail of some lines of 13 tokens.

    Every decoder's norms take it. Likewise for the commands: `plants/wrong_sum`.
    """
    right = torch.library.get_kernel(torch.ops.aten.mean.dim, "CPU")
    with torch.library._scoped_library("aten", "IMPL") as library, warnings.catch_warnings():
        warnings.simplefilter("ignore")

        def plant(symptom: str) -> None:
            def kernel(keyset: Any, x: Tensor, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
                result = right.call_boxed(keyset, x, dim, keepdim, dtype=dtype)
                if x.dtype != torch.float32 or x.dim() != 3 or not keepdim or x.shape[1] != CORNER_TOKENS:
                    return result
                without_tail = right.call_boxed(keyset, x[..., :-3], dim, keepdim, dtype=dtype)
                wrong = without_tail if symptom == "off" else torch.full_like(result, float("nan"))
                return torch.where(x[:, :1, :1] > result[:, :1], wrong, result)

            library.impl("mean.dim", kernel, "CPU", with_keyset=True, allow_override=True)

        yield plant


CORNER_TOKENS = 13
FIRST_NORM = {
    "sft": "network.model.layers.0.input_layernorm",
    "reward": "decoder.layers.0.input_layernorm",
    "dpo": "reference.network.model.layers.0.input_layernorm",  # it is asked first
}


@pytest.mark.parametrize("method", [*soaked("sft"), *slow("reward"), "dpo"])
def test_nan_in_the_loss_is_traced_to_the_operator_its_module_and_its_rows(
    method: str, pairs: Path, tmp_path: Path, wrong_mean: Callable[[str], None]
) -> None:
    wrong_mean("nan")
    tree, folder = recipe(method, pairs, tmp_path), tmp_path / "run"
    with pytest.raises(LossNotFiniteError) as died:
        train_one_rank(tree, folder)
    step = int(re.findall(r"step (\d+):", str(died.value))[0])
    report = replayed(one_rank_run(tree, folder), ReplayRequest(step=step, mode="watch", search_rows=True))
    assert report.operators is not None and report.rows is not None
    found = report.operators.finding
    assert found is not None and (found.operator, found.module) == ("aten.mean.dim", FIRST_NORM[method])
    assert (found.phase, found.lane is None) == ("forward", False)
    assert 0 < len(found.row_ids) <= 4
    assert set(found.row_ids) <= {row.row_id for row in report.rows.rows}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sft", *soaked("reward", "dpo")])
def test_a_mean_that_is_only_a_little_off_is_found_though_the_replay_is_equal(
    method: str, pairs: Path, tmp_path: Path, wrong_mean: Callable[[str], None]
) -> None:
    tree, folder = recipe(method, pairs, tmp_path), tmp_path / "off"
    right = train_one_rank(tree, tmp_path / "right").steps
    wrong_mean("off")
    wrong = train_one_rank(tree, folder).steps
    losses = zip(*([step["loss"] for step in steps] for steps in (right, wrong)), strict=True)
    first = next(step for step, (one, other) in enumerate(losses, 1) if one != other)
    report = replayed(one_rank_run(tree, folder), ReplayRequest(step=first, mode="audit-ops"))
    assert report.verdict == "equal" and report.operators is not None
    found = report.operators.finding
    assert found is not None and (found.operator, found.module) == ("aten.mean.dim", FIRST_NORM[method])


@pytest.mark.slow
@pytest.mark.parametrize("method", [*soaked("sft", "reward"), "dpo"])
def test_a_rank_that_flips_bits_is_named_and_training_goes_back_to_the_last_verified_commit(
    method: str, pairs: Path, tmp_path: Path
) -> None:
    trainer = {"max_steps": 10, "commit_every": 2, "spot_check_every": 4}
    tree = recipe(method, pairs, tmp_path, trainer=trainer)
    train_one_rank(tree, tmp_path / "alone")
    undisturbed = CommitLog(open_store(str(tmp_path / "alone"))).commits()[-1].weights_digest
    assay = PlantedAssay(tmp_path, tree)
    # Rank 1 makes one lane in each of 4 steps, and at the check of step 4 a further one, for another rank.
    assay.plant("flipped_bit", FLIP_FROM_CALL="6", FLIP_HAPPENED=str(tmp_path / "flipped"))
    # Time for the commit of step 6 to be written before the check of step 8 ends the attempt.
    pause = {"type": "slow", "rank": 0, "step": 7, "extra_s": 1.5, "num_steps": 1}
    (faults := tmp_path / "faults.yaml").write_text(yaml.safe_dump({"faults": [pause]}))
    shown = assay.train("flipped", 4, "--faults", str(faults))
    first, second = shown["attempts"]
    (suspect,) = first["suspects"]
    assert (suspect["rank"], suspect["step"], suspect["is_certain"]) == (1, 8, True)
    assert (first["end_step"], second["start_step"], second["suspects"]) == (4, 4, [])
    assert (shown["weights_digest"], shown["audit"]["verdict"]) == (undisturbed, "pass")
