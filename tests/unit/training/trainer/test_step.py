"""One update, from a rank's share to the weights: what is seeded, weighed, summed, divided, reported, refused.

The method is a regression with noise; the reference computes lane by lane.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from assay.base.seeds import derive_key
from assay.data.loader.batch import LaneShare, StepShare
from assay.data.loader.lane_shares import LaneShares
from assay.distributed.ranks import Ranks
from assay.records.cursor import Cursor
from assay.training.numerics import MetricSum, digest_of_tensors
from assay.training.samples import DatasetRows
from assay.training.trainer.config import OptimizerConfig, ScheduleConfig
from assay.training.trainer.lane_forward import LaneForward, num_backwards
from assay.training.trainer.lane_recomputer import LaneRecomputer, ShardedLaneRecomputer
from assay.training.trainer.method import Loss
from assay.training.trainer.optimizer import build_optimizer
from assay.training.trainer.spot_check import SpotCheck
from assay.training.trainer.step import Stepper, StepTotals, initial_model
from forked_ranks import on_ranks
from noisy_regression import NoisyRegression, micro_batch
from shared_lanes import lane_sum_of
from variants import slow

CPU = torch.device("cpu")
SEED, NUM_STEPS = 11, 10
CONFIG = OptimizerConfig(learning_rate=0.05, max_gradient_norm=0.5, schedule=ScheduleConfig(warmup_steps=4))
LANES = [[[1, 2], [3]], [], [[4, 5, 6]], [[7], [8], [9, 10]]]
"""[lane][micro-batch][row]; a row has as many tokens as its number modulo 3, and one more."""


class NotFinite(NoisyRegression):
    """Wrong on row 8."""

    def loss(self, model: nn.Module, tensors, frozen_models) -> Loss:
        found = super().loss(model, tensors, frozen_models)
        is_wrong = (tensors["points"][:, 0] == 0.8).any()
        return found._replace(sum=found.sum * (math.nan if is_wrong else 1.0))


def lane(number: int) -> LaneShare:
    return LaneShare(number, tuple(map(micro_batch, LANES[number])))


def reference_pass(model: nn.Module, rows: Sequence[int], number: int, index: int, step: int):
    """Loss and metric of one pass, as anybody would write it down."""
    torch.manual_seed(derive_key(SEED, "forward", step, number, index))
    points = torch.tensor([[row / 10, math.sin(row), math.cos(row)] for row in rows])
    error = model(points) + torch.rand(len(rows), 1)
    return error.square().sum(), error.abs().sum()


def reference_steps(steps: int) -> list[dict[str, float]]:
    model = initial_model(NoisyRegression(), seed=SEED, device=CPU)
    optimizer = torch.optim.AdamW(
        [{"params": [model.weight]}, {"params": [model.bias], "weight_decay": 0.0}], weight_decay=0.01
    )
    found = []
    for step in range(1, steps + 1):
        passes = [
            (*reference_pass(model, rows, number, index, step), rows)
            for number, batches in enumerate(LANES)
            for index, rows in enumerate(batches)
        ]
        weight = sum(row % 3 + 1 for *_, rows in passes for row in rows)
        loss = sum(loss for loss, *_ in passes) / weight
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), CONFIG.max_gradient_norm)
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * step / 4
        optimizer.step()
        error = sum(error for _, error, _ in passes) / sum(len(rows) for *_, rows in passes)
        found.append(
            {"loss": loss.item(), "norm": norm.item(), "error": error.item(), "rate": 0.05 * step / 4}
            | {f"w{i}": float(w) for i, w in enumerate(model.weight[0].detach())}
        )
    return found


def stepper_of(
    ranks: Ranks,
    method=None,
    *,
    interval: int | None = None,
    num_lanes: int = len(LANES),
    times_lanes: bool = False,
):
    method = method or NoisyRegression()
    forward = LaneForward(method, device=ranks.device, precision="float32", seed=SEED)
    model = initial_model(method, seed=SEED, device=ranks.device)
    is_sharded = ranks.inner is not None
    lane_sum = lane_sum_of(model, ranks, num_lanes, several_passes=True)
    source = DatasetRows()
    recomputer = (
        ShardedLaneRecomputer(forward, source, lane_sum) if is_sharded else LaneRecomputer(forward, source, model)
    )
    check = interval and SpotCheck(recomputer, lane_sum, ranks, is_due=lambda step: step % interval == 0, seed=SEED)
    optimizer = build_optimizer(model, CONFIG)
    stepper = Stepper(
        source,
        forward,
        lane_sum,
        optimizer,
        ranks,
        config=CONFIG,
        num_steps=NUM_STEPS,
        spot_check=check or None,
        times_lanes=times_lanes,
    )
    lanes = LaneShares(len(LANES), ranks.world_size, interleaved=is_sharded).of_rank(ranks.rank)
    return stepper, StepShare(Cursor(), tuple(lane(number) for number in lanes)), model


def steps_on(ranks: Ranks, num_steps: int = 3, *, interval: int | None = None, times_lanes: bool = False):
    stepper, share, model = stepper_of(ranks, interval=interval, times_lanes=times_lanes)
    found = []
    for step in range(1, num_steps + 1):
        totals = stepper.step(share, step=step, stop_requested=False)
        weights = model.weight.full_tensor() if ranks.inner is not None else model.weight
        found.append((portable(totals), weights[0].tolist(), model.weight.grad is None))
    return found


def portable(totals: StepTotals) -> StepTotals:
    """Read-only mappings do not travel."""
    mappings = {name: dict(getattr(totals, name)) for name in ("metrics", "digests", "costs")}
    return totals._replace(**mappings)


@pytest.fixture(scope="module")
def three_steps(tmp_path_factory: pytest.TempPathFactory):
    [found] = on_ranks(1, lambda ranks: steps_on(ranks), tmp_path_factory.mktemp("one"))
    return found


def test_steps_are_those_of_a_plain_loop(three_steps) -> None:
    for (totals, weights, is_forgotten), plain in zip(three_steps, reference_steps(3), strict=True):
        assert totals.loss == pytest.approx(plain["loss"], rel=1e-5)
        assert totals.gradient_norm == pytest.approx(plain["norm"], rel=1e-5)
        assert totals.learning_rate == pytest.approx(plain["rate"])
        assert dict(totals.metrics) == {"error": pytest.approx(plain["error"], rel=1e-5)}
        assert weights == pytest.approx([plain[f"w{i}"] for i in range(3)], rel=1e-4)
        assert is_forgotten


def test_a_step_counts_rows_tokens_and_weight_and_says_what_was_not_asked(three_steps) -> None:
    rows = [row for batches in LANES for batch in batches for row in batch]
    num_tokens = sum(row % 3 + 1 for row in rows)
    for totals, *_ in three_steps:
        assert (totals.num_rows, totals.num_tokens, totals.weight) == (len(rows), num_tokens, num_tokens)
        assert totals.loss == totals.loss_sum / num_tokens
        assert totals.bad_lanes == () and totals.is_applied and not totals.requests_commit()
        assert not totals.is_verified and totals.digests == {}
        assert 0 <= totals.exchange_s < 30


@pytest.mark.parametrize("case", [(3, False), (3, True), *slow((2, False), (4, True))], ids=str)
def test_ranks_make_the_steps_of_one_rank_bit_for_bit(three_steps, case, tmp_path) -> None:
    world_size, shards_weights = case
    of_ranks = on_ranks(world_size, steps_on, tmp_path, shards_weights=shards_weights)
    for found in of_ranks:
        for (totals, weights, _), (alone, weights_alone, _) in zip(found, three_steps, strict=True):
            assert totals._replace(exchange_s=alone.exchange_s) == alone
            assert weights == weights_alone


@pytest.mark.parametrize(("world_size", "shards_weights"), [(1, False), (3, False), (3, True)])
def test_a_checked_step_says_so_with_its_digests_and_computes_the_same(
    three_steps, world_size, shards_weights, tmp_path: Path
) -> None:
    found = on_ranks(world_size, lambda ranks: steps_on(ranks, interval=2), tmp_path, shards_weights=shards_weights)
    for of_rank in found:
        assert [totals.is_verified for totals, *_ in of_rank] == [False, True, False]
        assert [weights for _, weights, _ in of_rank] == [weights for _, weights, _ in three_steps]
        assert not of_rank[0][0].digests
        digests = of_rank[1][0].digests
        assert digests["gradient_digest"] == found[0][1][0].digests["gradient_digest"]
        assert ("spot_check_lane" in digests) == ("spot_check_digest" in digests)


def test_a_timed_step_says_what_each_lane_took_and_computes_the_same(three_steps, tmp_path: Path) -> None:
    [found] = on_ranks(1, lambda ranks: steps_on(ranks, times_lanes=True), tmp_path)
    for (timed, weights, _), (plain, same, _) in zip(found, three_steps, strict=True):
        assert weights == same
        assert timed._replace(costs={}, exchange_s=0.0) == plain._replace(exchange_s=0.0)
        lanes = {name for name in timed.costs if name.startswith("lane_")}
        assert lanes == {f"lane_{lane:04d}_s" for lane in range(len(LANES))}
        assert min(timed.costs[name] for name in lanes) > 0
        assert timed.costs["bucket_000_bytes"] == 4 * 4, "three weights and a bias in float32"
        assert timed.costs["bucket_000_before_last_s"] == 0.0


@pytest.mark.parametrize("shards_weights", [False, True])
def test_a_lane_of_several_passes_has_a_digest_of_its_own_where_they_are_added(
    shards_weights: bool, tmp_path: Path
) -> None:
    """Lanes of unequal lengths are checked side by side: a pass beyond the own last one is in no digest."""
    found = on_ranks(2, lambda ranks: steps_on(ranks, 6, interval=1), tmp_path, shards_weights=shards_weights)
    lanes = LaneShares(len(LANES), 2, interleaved=shards_weights)
    looked_at = set()
    for rank, of_rank in enumerate(found):
        alone = list(lanes.of_rank(rank)) if shards_weights else list(lanes.of_rank(rank))[::2]
        for step, (totals, *_) in enumerate(of_rank, 1):
            number = alone[derive_key(SEED, "spot check", step, rank) % len(alone)]
            is_notified = not shards_weights or num_backwards(lane(number)) == 1
            assert totals.is_verified
            assert totals.digests.get("spot_check_lane") == (number if is_notified else None)
            looked_at.add(number)
    assert looked_at == ({0, 1, 2, 3} if shards_weights else {0, 2})


def test_a_spot_checks_digest_is_that_of_the_lane_computed_apart(tmp_path: Path) -> None:
    def checked(ranks: Ranks) -> tuple[float, float, int]:
        stepper, share, _ = stepper_of(ranks, interval=1)
        digests = stepper.step(share, step=1, stop_requested=False).digests
        model = initial_model(NoisyRegression(), seed=SEED, device=CPU)
        forward = LaneForward(NoisyRegression(), device=CPU, precision="float32", seed=SEED)
        number = int(digests["spot_check_lane"])
        apart = LaneRecomputer(forward, DatasetRows(), model)
        again = apart.of(lane(number), step=1)
        losses = [reference_pass(model, rows, number, index, 1)[0] for index, rows in enumerate(LANES[number])]
        assert again.loss_sum == pytest.approx(sum(loss.item() for loss in losses))
        assert all(parameter.grad is None for parameter in model.parameters())
        assert apart.digest(lane(number), step=1) == digest_of_tensors(again.gradients)
        assert apart.digest(lane(number), step=2) != digest_of_tensors(again.gradients)
        return digests["spot_check_lane"], digests["spot_check_digest"], digest_of_tensors(again.gradients)

    [(number, digest, again)] = on_ranks(1, checked, tmp_path)
    assert number in (0, 2) and digest == again


@pytest.mark.parametrize("requests", [{"stop_requested": [False, True]}, {"commit_requested": [True, False]}])
def test_what_a_rank_is_asked_reaches_all_but_only_rank_0_asks_for_commits(requests, tmp_path: Path) -> None:
    def requested(ranks: Ranks) -> tuple[bool, bool, bool]:
        stepper, share, _ = stepper_of(ranks)
        own = {name: values[ranks.rank] for name, values in requests.items()}
        totals = stepper.step(share, step=1, **{"stop_requested": False, **own})
        others = {"commit_requested": ranks.rank == 1, "stop_requested": False}
        later = stepper.step(share, step=2, **others)
        return totals.stop_requested, totals.commit_requested, totals.requests_commit(), later.requests_commit()

    expected = ("stop_requested" in requests, "commit_requested" in requests, True, False)
    assert on_ranks(2, requested, tmp_path) == [expected] * 2


def test_a_loss_that_is_not_finite_names_its_lane_and_changes_nothing(tmp_path: Path) -> None:
    def refused(ranks: Ranks):
        stepper, share, model = stepper_of(ranks, NotFinite())
        before = model.weight.tolist()
        totals = stepper.step(share, step=1, stop_requested=False)
        return totals.bad_lanes, totals.is_applied, model.weight.tolist() == before

    assert on_ranks(2, refused, tmp_path) == [((3,), False, True)] * 2


class SteepAtZero(NoisyRegression):
    """A loss that is a number, with a gradient that is none."""

    def loss(self, model: nn.Module, tensors, frozen_models) -> Loss:
        found = super().loss(model, tensors, frozen_models)
        return found._replace(sum=found.sum + (0.0 * model(tensors["points"])).sqrt().sum())


def test_a_gradient_that_is_no_number_changes_nothing_though_every_loss_is_one(tmp_path: Path) -> None:
    def refused(ranks: Ranks):
        stepper, share, model = stepper_of(ranks, SteepAtZero())
        before = model.weight.tolist()
        totals = stepper.step(share, step=1, stop_requested=False)
        return (
            math.isnan(totals.gradient_norm),
            totals.bad_lanes,
            totals.is_applied,
            model.weight.tolist() == before,
        )

    assert on_ranks(1, refused, tmp_path) == [(True, (), False, True)]


def test_a_step_in_which_nothing_weighs_learns_nothing_and_is_a_step(tmp_path: Path) -> None:
    def empty(ranks: Ranks):
        stepper, _, _ = stepper_of(ranks, num_lanes=1)
        totals = stepper.step(StepShare(Cursor(), (lane(1),)), step=1, stop_requested=False)
        return totals.weight, totals.loss, totals.gradient_norm, totals.is_applied

    assert on_ranks(1, empty, tmp_path) == [(0, 0.0, 0.0, True)]


def test_lanes_are_named_in_their_order_however_ranks_share_them(tmp_path: Path) -> None:
    def refused(ranks: Ranks):
        stepper, _, _ = stepper_of(ranks, NotFinite())
        lanes = LaneShares(len(LANES), ranks.world_size, interleaved=True).of_rank(ranks.rank)
        share = StepShare(Cursor(), tuple(LaneShare(number, (micro_batch([8]),)) for number in lanes))
        return stepper.step(share, step=1, stop_requested=False).bad_lanes

    assert on_ranks(2, refused, tmp_path, shards_weights=True) == [(0, 1, 2, 3)] * 2


def test_a_step_of_a_single_token_is_divided_by_one(tmp_path: Path) -> None:
    def one_row(ranks: Ranks) -> tuple[StepTotals, float, float]:
        stepper, _, model = stepper_of(ranks, num_lanes=1)
        loss, _ = reference_pass(model, [3], 0, 0, 1)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        share = StepShare(Cursor(), (LaneShare(0, (micro_batch([3]),)),))
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        return portable(stepper.step(share, step=1, stop_requested=False)), loss.item(), norm.item()

    [(totals, loss, norm)] = on_ranks(1, one_row, tmp_path)
    assert totals.weight == 1
    assert totals.loss == pytest.approx(loss) and totals.gradient_norm == pytest.approx(norm)


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    totals = StepTotals(
        num_rows=1, num_tokens=1, weight=1, loss_sum=1.0, gradient_norm=math.inf, learning_rate=0.1,
        stop_requested=False, commit_requested=False, exchange_s=0.0, bad_lanes=(),
    )  # fmt: skip
    assert not totals.is_applied and totals._replace(gradient_norm=1.0).is_applied
    assert not totals._replace(gradient_norm=1.0, bad_lanes=(0,)).is_applied
    assert totals.loss == 1.0 and totals._replace(weight=0, loss_sum=0.0).loss == 0.0


def test_a_lane_without_rows_computes_a_blank_that_weighs_nothing() -> None:
    forward = LaneForward(NoisyRegression(), device=CPU, precision="float32", seed=SEED)
    model = NoisyRegression().build_model()
    loss = forward.loss(model, lane(1), 0, step=1)
    assert loss.sum.item() == 0.0 and forward.micro_batch is None
    assert {name: (m.sum.item(), m.weight) for name, m in loss.metrics.items()} == {
        "error": (0.0, 0.0),
        "seldom": (0.0, 0.0),
    }
    loss.sum.backward()
    assert model.weight.grad is not None and not model.weight.grad.any()
    assert [num_backwards(lane(number)) for number in range(4)] == [2, 1, 1, 3]
    assert [forward.weight(lane(number)) for number in range(4)] == [6, 0, 6, 8]
    assert forward.weight_of(micro_batch([7])) == 2


class NothingToLose(NoisyRegression):
    """Whose blank has a loss of zero, as a masked one has."""

    def loss(self, model: nn.Module, tensors, frozen_models) -> Loss:
        nothing = 0.0 * model(tensors["points"]).sum()
        return Loss(nothing, {name: MetricSum(nothing.detach(), 1.0) for name in self.metrics})


def test_a_blank_that_loses_nothing_adds_nothing_either() -> None:
    forward = LaneForward(NothingToLose(), device=CPU, precision="float32", seed=SEED)
    loss = forward.loss(NothingToLose().build_model(), lane(1), 0, step=1)
    assert loss.sum.item() == 0.0 and [metric.sum.item() for metric in loss.metrics.values()] == [0.0, 0.0]


@pytest.mark.parametrize("shards_weights", [False, True])
def test_a_step_computes_and_again_once_the_gradients_are_exchanged(shards_weights, tmp_path: Path) -> None:
    def phases(ranks: Ranks) -> list[str]:
        stepper, share, _ = stepper_of(ranks)
        entered: list[str] = []
        stepper._lane_sum.enter_phase = entered.append
        stepper.step(share, step=1, stop_requested=False)
        return entered

    of_ranks = on_ranks(2, phases, tmp_path, shards_weights=shards_weights)
    assert of_ranks == [["compute", "communication", "compute"]] * 2


def test_the_randomness_of_a_pass_is_that_of_step_lane_and_index() -> None:
    forward = LaneForward(NoisyRegression(), device=CPU, precision="float32", seed=SEED)
    model = initial_model(NoisyRegression(), seed=SEED, device=CPU)
    same = [LaneShare(number, (micro_batch([1]), micro_batch([1]))) for number in (0, 1)]

    def loss(number: int, index: int, step: int) -> float:
        return forward.loss(model, same[number], index, step=step).sum.item()

    assert loss(0, 0, 1) == loss(0, 0, 1) == reference_pass(model, [1], 0, 0, 1)[0].item()
    assert len({loss(0, 0, 1), loss(1, 0, 1), loss(0, 1, 1), loss(0, 0, 2)}) == 4
    assert forward.micro_batch is same[0].micro_batches[0]


def test_helpers_are_frozen_and_draw_nothing() -> None:
    seen = []

    class Watching(NoisyRegression):
        def loss(self, model: nn.Module, tensors, frozen_models) -> Loss:
            seen.append(frozen_models["offset"])
            return super().loss(model, tensors, frozen_models)

    forward = LaneForward(Watching(), device=CPU, precision="bfloat16", seed=SEED)
    forward.loss_of(Watching().build_model(), micro_batch([1]))
    [frozen_model] = seen
    assert not frozen_model.training and not any(parameter.requires_grad for parameter in frozen_model.parameters())


def test_starting_weights_are_drawn_from_the_seed() -> None:
    one, same, other = (initial_model(NoisyRegression(), seed=seed, device=CPU) for seed in (1, 1, 2))
    assert torch.equal(one.weight, same.weight) and not torch.equal(one.weight, other.weight)
    torch.manual_seed(derive_key(1, "weights"))
    assert torch.equal(one.weight, nn.Linear(3, 1).weight)


def test_a_model_trains_from_its_first_step_on_whatever_mode_a_folder_left_it_in() -> None:
    class FromFolder(NoisyRegression):
        def build_model(self) -> nn.Module:
            return nn.Sequential(nn.Dropout(0.5).eval())

    model = initial_model(FromFolder(), seed=1, device=CPU)
    assert all(module.training for module in model.modules())
