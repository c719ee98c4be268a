"""One update where rows are prompts: that of the rows that the model answers, what it cost, and who agreed."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from assay.base.seeds import derive_key
from assay.data.loader.batch import LaneShare, StepShare
from assay.data.loader.lane_shares import LaneShares
from assay.distributed.ranks import Ranks
from assay.records.cursor import Cursor
from assay.training.checkpoint.parts import ROLLOUTS
from assay.training.numerics import combined_digest
from assay.training.samples import StepCancelledError
from assay.training.trainer import captured as captured_module
from assay.training.trainer.config import OptimizerConfig, ScheduleConfig
from assay.training.trainer.lane_forward import LaneForward
from assay.training.trainer.lane_recomputer import LaneRecomputer, ShardedLaneRecomputer
from assay.training.trainer.method import Loss
from assay.training.trainer.optimizer import build_optimizer
from assay.training.trainer.spot_check import SpotCheck
from assay.training.trainer.step import Stepper, StepTotals, initial_model
from forked_ranks import on_ranks
from noisy_regression import NoisyRegression, PromptRows, micro_batch
from shared_lanes import lane_sum_of, source_of
from variants import slow

SEED, NUM_STEPS = 11, 10
CONFIG = OptimizerConfig(learning_rate=0.05, max_gradient_norm=0.5, schedule=ScheduleConfig(warmup_steps=4))
PROMPTS = [[1, 2], [], [3, 4, 5], [6]]
"""[lane][row]"""


def lanes_of(ranks: Ranks, of_lanes: list[list[int]] = PROMPTS, *, more: int = 0) -> tuple[LaneShare, ...]:
    numbers = LaneShares(len(of_lanes), ranks.world_size, interleaved=ranks.inner is not None).of_rank(ranks.rank)
    return tuple(
        LaneShare(number, (micro_batch([row + more for row in of_lanes[number]]),) if of_lanes[number] else ())
        for number in numbers
    )


def stepper_of(ranks: Ranks, method: NoisyRegression, *, checks: bool = False, **choices: Any) -> Any:
    """With its parts: `.stepper`, `.source`, `.lane_sum`, `.model`."""
    is_sharded = ranks.inner is not None
    updates = method.updates_per_rollout if isinstance(method, PromptRows) else 1
    forward = LaneForward(method, device=ranks.device, precision="float32", seed=SEED, updates_per_step=updates)
    model = initial_model(method, seed=SEED, device=ranks.device)
    lane_sum = lane_sum_of(model, ranks, len(PROMPTS), several_passes=True, gathers=True)
    source = source_of(method, forward, lane_sum, ranks, SEED, **choices)
    recomputer = (
        ShardedLaneRecomputer(forward, source, lane_sum) if is_sharded else LaneRecomputer(forward, source, model)
    )
    check = SpotCheck(recomputer, lane_sum, ranks, is_due=lambda step: True, seed=SEED) if checks else None
    stepper = Stepper(
        source, forward, lane_sum, build_optimizer(model, CONFIG), ranks, config=CONFIG, num_steps=NUM_STEPS,
        spot_check=check,
    )  # fmt: skip
    return SimpleNamespace(stepper=stepper, source=source, lane_sum=lane_sum, model=model)


def portable(totals: StepTotals) -> StepTotals:
    """Read-only mappings do not travel; what a step took is another thing each time."""
    mappings = {name: dict(getattr(totals, name)) for name in ("metrics", "digests")}
    return totals._replace(**mappings, costs={}, exchange_s=0.0)


def weights_of(model: nn.Module) -> list[float]:
    whole = model.weight.full_tensor() if hasattr(model.weight, "full_tensor") else model.weight
    return whole[0].tolist()


def two_steps(ranks: Ranks, method: PromptRows, **choices: Any) -> list[tuple[StepTotals, list[float]]]:
    parts, found = stepper_of(ranks, method, **choices), []
    for step in (1, 2):
        share = StepShare(Cursor(), lanes_of(ranks, more=step), upcoming=(lanes_of(ranks, more=step + 1),))
        share = share if method.staleness else replace(share, upcoming=())
        totals = parts.stepper.step(share, step=step, stop_requested=False)
        found.append((portable(totals), weights_of(parts.model)))
    return found


def test_a_step_of_prompts_is_that_of_the_rows_that_the_model_answers(tmp_path: Path) -> None:
    """And its digest is that of all lanes' answers, by lane."""

    def pair(ranks: Ranks) -> Any:
        method, share = PromptRows(), StepShare(Cursor(), lanes_of(ranks))
        prompted, plain = stepper_of(ranks, method), stepper_of(ranks, NoisyRegression())
        result = prompted.source.collect(share, step=1)
        totals = portable(prompted.stepper.step(share, step=1, stop_requested=False))
        rows = StepShare(Cursor(), tuple(item.lane for item in result))
        of_rows = portable(plain.stepper.step(rows, step=1, stop_requested=False))
        completed = [[int(row) for batch in item.lane.micro_batches for row in batch.row_ids] for item in result]
        same = weights_of(prompted.model) == weights_of(plain.model)
        return (
            totals,
            of_rows,
            completed,
            method.checked,
            same,
            [group for item in result for group in item.log],
        )

    [(totals, of_rows, completed, checked, is_same, log)] = on_ranks(1, pair, tmp_path)
    rewards = sum(map(sum, completed)) / 6
    metrics = {**of_rows.metrics, "shaped_reward": rewards}
    digests = {"rollout_digest": float(combined_digest(combined_digest(rows) for rows in completed))}
    assert totals.metrics == metrics and totals.digests == digests and checked == [(1, metrics)]
    assert totals.log == tuple(log) and len(log) == 6 and of_rows.log is None
    assert totals._replace(metrics={}, digests={}, log=None) == of_rows._replace(metrics={})
    assert totals.num_rows == 6 and is_same


CASES = {
    "at once": {},
    "by the means of all": {"step_statistics": ("shaped_reward",)},
    "three updates": {"updates_per_rollout": 3},
    "a step ahead": {"staleness": 1, "updates_per_rollout": 2},
}


@pytest.mark.parametrize("case", ["a step ahead", *slow("at once", "by the means of all", "three updates")])
def test_ranks_make_the_steps_of_prompts_that_one_rank_makes_and_check_them(case, tmp_path: Path) -> None:
    keys = CASES[case]
    [alone] = on_ranks(1, lambda ranks: two_steps(ranks, PromptRows(**keys)), tmp_path / "1")
    for is_sharded in (False, True):
        of_ranks = on_ranks(
            2, lambda ranks: two_steps(ranks, PromptRows(**keys), checks=True), tmp_path / f"2{is_sharded}",
            shards_weights=is_sharded,
        )  # fmt: skip
        for found in of_ranks:
            for (totals, weights), (of_one, weights_of_one) in zip(found, alone, strict=True):
                assert totals.is_verified and not of_one.is_verified
                assert totals.digests["rollout_digest"] == of_one.digests["rollout_digest"]
                assert totals._replace(is_verified=False, digests={}, log=()) == of_one._replace(digests={}, log=())
                assert weights == weights_of_one
        journals = [[group for found in of_ranks for group in found[step][0].log] for step in (0, 1)]
        assert [sorted(log) for log in journals] == [sorted(totals.log) for totals, _ in alone]


def test_later_updates_of_a_step_go_on_from_the_first(tmp_path: Path) -> None:
    def updates(ranks: Ranks) -> Any:
        parts = stepper_of(ranks, PromptRows(updates_per_rollout=2))
        share = StepShare(Cursor(), (LaneShare(0, (micro_batch([4]),)),))
        model = initial_model(NoisyRegression(), seed=SEED, device=ranks.device)
        [result] = parts.source.collect(share, step=1)
        [row] = result.lane.micro_batches[0].row_ids.tolist()
        totals = parts.stepper.step(share, step=1, stop_requested=False)
        return totals.loss_sum, weights_of(parts.model), manually(model, row), weights_of(model)

    [(loss, weights, expected, reference)] = on_ranks(1, updates, tmp_path)
    assert loss == pytest.approx(expected, rel=1e-5) and weights == pytest.approx(reference, rel=1e-4)


def manually(model: nn.Module, row: int) -> float:
    """Two updates of PyTorch's own; the loss of the second."""
    optimizer = torch.optim.AdamW(
        [{"params": [model.weight]}, {"params": [model.bias], "weight_decay": 0.0}],
        lr=0.05 / 4,
        weight_decay=0.01,
    )
    losses: list[float] = []
    for again in ((), ("update", 1)):
        torch.manual_seed(derive_key(SEED, "forward", 1, 0, 0, *again))
        number = torch.tensor([float(row)])
        points = torch.stack([number / 10, number.sin(), number.cos()], dim=1)
        loss = (model(points) + torch.rand(1, 1)).square().sum() * (1 + sum(losses))
        losses.append(loss.item())
        optimizer.zero_grad()
        (loss / (row % 3 + 1)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CONFIG.max_gradient_norm)
        optimizer.step()
    return losses[-1]


class Diverges(PromptRows):
    """The loss of its second pass, and of all that follow, is no number."""

    num_passes = 0

    def loss(self, model: nn.Module, tensors, frozen_models) -> Loss:
        self.num_passes += 1
        found = super().loss(model, tensors, frozen_models)
        return found if self.num_passes == 1 else found._replace(sum=found.sum * float("nan"))


def test_after_an_update_that_is_not_made_no_other_is_tried(tmp_path: Path) -> None:
    def diverges(ranks: Ranks) -> Any:
        method = Diverges(updates_per_rollout=4, staleness=1)
        parts = stepper_of(ranks, method)
        share = StepShare(Cursor(), (LaneShare(0, (micro_batch([4]),)),))
        totals = parts.stepper.step(share, step=1, stop_requested=False)
        held = parts.source.parts[ROLLOUTS].has(1, 0)
        return totals.is_applied, totals.bad_lanes, method.num_passes, held, len(method.checked)

    assert on_ranks(1, diverges, tmp_path) == [(False, (0,), 2, True, 1)]


class Ticking(PromptRows):
    """Its forward passes take three seconds, its backward passes five, by a clock that else stands still."""

    now = 100.0

    def loss(self, model: nn.Module, tensors, frozen_models) -> Loss:
        self.now += 3.0
        found = super().loss(model, tensors, frozen_models)
        found.sum.register_hook(self._went_back)
        return found

    def _went_back(self, gradient: torch.Tensor) -> None:
        self.now += 5.0


def test_a_step_says_what_its_passes_took_beside_what_its_answers_cost(tmp_path: Path) -> None:
    def costs(ranks: Ranks) -> list[dict[str, float]]:
        method = Ticking(updates_per_rollout=2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(captured_module, "time", SimpleNamespace(monotonic=lambda: method.now))
            stepper = stepper_of(ranks, method).stepper
            share = StepShare(Cursor(), lanes_of(ranks))
            return [dict(stepper.step(share, step=step, stop_requested=False).costs) for step in (1, 2)]

    passes = 2 * len(PROMPTS)
    assert on_ranks(1, costs, tmp_path) == [
        [{"decode_s": 0.5, "forward_s": 3.0 * passes, "backward_s": 5.0 * passes}] * 2
    ]


def test_rows_that_are_no_prompts_cost_nothing_to_answer(tmp_path: Path) -> None:
    def costs(ranks: Ranks) -> dict[str, float]:
        stepper = stepper_of(ranks, NoisyRegression()).stepper
        return dict(stepper.step(StepShare(Cursor(), lanes_of(ranks)), step=1, stop_requested=False).costs)

    assert on_ranks(1, costs, tmp_path) == [{}]


def phases(ranks: Ranks) -> list[str]:
    parts, entered = stepper_of(ranks, PromptRows()), list[str]()
    parts.lane_sum.enter_phase = entered.append
    parts.stepper.step(StepShare(Cursor(), lanes_of(ranks)), step=1, stop_requested=False)
    return entered


@pytest.mark.parametrize("is_sharded", [False, True])
def test_a_step_of_prompts_says_what_it_does(is_sharded: bool, tmp_path: Path) -> None:
    gathered = ["synchronisation"] if is_sharded else []
    completed = ["generation", "communication", "compute"]
    assert (
        on_ranks(2, phases, tmp_path, shards_weights=is_sharded)
        == [[*gathered, *completed, "communication", "compute"]] * 2
    )


def requested_of_one(ranks: Ranks) -> Any:
    """Rank 1 is asked to stop as it answers ahead, in the second step."""
    requested: Iterator[bool] = iter([False, False, ranks.rank == 1])
    parts = stepper_of(ranks, PromptRows(staleness=1), is_stopping=lambda: next(requested))
    steps = [lanes_of(ranks, more=step) for step in range(3)]
    parts.stepper.step(StepShare(Cursor(), steps[0], upcoming=(steps[1],)), step=1, stop_requested=False)
    before = weights_of(parts.model)
    with pytest.raises(StepCancelledError):
        parts.stepper.step(StepShare(Cursor(), steps[1], upcoming=(steps[2],)), step=2, stop_requested=False)
    held, own = parts.source.parts[ROLLOUTS], steps[0][0].lane
    return [step for step in range(5) if held.has(step, own)], weights_of(parts.model) == before


def test_a_step_that_one_rank_abandons_leaves_nothing_on_any(tmp_path: Path) -> None:
    assert on_ranks(2, requested_of_one, tmp_path) == [([2], True)] * 2


def test_what_a_step_does_not_say_is_none() -> None:
    totals = StepTotals(
        num_rows=1, num_tokens=1, weight=1, loss_sum=1.0, gradient_norm=1.0, learning_rate=0.1,
        stop_requested=False, commit_requested=False, exchange_s=0.0, bad_lanes=(),
    )  # fmt: skip
    assert totals.is_verified is False and totals.log is None
    assert totals.metrics == totals.digests == totals.costs == {}
