"""What a lane learns from: rows, answers, or answers of steps before; made with which keys, and by whom."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from assay.base.seeds import derive_key
from assay.data.loader.batch import LaneShare, StepShare
from assay.inference.rollout import GenerationCancelledError
from assay.records.cursor import Cursor
from assay.training.checkpoint.parts import ROLLOUTS
from assay.training.trainer.lane_forward import LaneForward, means_of
from assay.training.trainer.lane_recomputer import LaneRecomputer, ShardedLaneRecomputer
from assay.training.trainer.method import LaneSamples, Loss, MetricSum
from assay.training.trainer.rollout_buffer import BufferedLane
from noisy_regression import NoisyRegression, PromptRows, micro_batch

CPU = torch.device("cpu")
SEED = 11


class FakeRewardCache:
    """Says which of its faces was shown."""

    def read_only(self) -> str:
        return "read only"


def forward_of(method: Any, **choices: Any) -> LaneForward:
    return LaneForward(method, device=CPU, seed=SEED, **{"precision": "float32", **choices})


def model_of(number: int = 0) -> nn.Module:
    torch.manual_seed(number)
    return nn.Linear(3, 1)


def prompts(lane: int, *rows: int) -> LaneShare:
    return LaneShare(lane, (micro_batch(rows),))


def rows_of(lane: LaneShare) -> list[int]:
    return [int(row) for batch in lane.micro_batches for row in batch.row_ids]


def seed_of(step: int) -> int:
    return derive_key(SEED, "rollout", step)


def nobody() -> nn.Module:
    raise AssertionError("nothing is made, so no weights are gathered")


def test_rows_that_are_no_prompts_are_learned_as_they_are() -> None:
    forward, lanes = forward_of(NoisyRegression()), [prompts(0, 1), prompts(1, 2)]
    assert [result.lane for result in forward.training_samples(nobody, lanes, step=1)] == lanes
    assert (forward.uses_rollouts, forward.rollout_costs, forward.parts) == (False, None, {})
    assert (forward.updates_per_step, forward.staleness) == (1, 0)
    forward.check_step({}, step=1)
    share = StepShare(Cursor(), tuple(lanes))
    assert forward.for_recomputation(share, step=1) is share and forward.regenerated_digests(nobody, lanes[0]) == []
    assert not forward.is_under_way and forward.lane is None and forward.micro_batch is None
    with pytest.raises(AssertionError, match="its rows are no prompts"):
        forward.rollout(model_of(), lanes[0], step=1, row_id=1, sample=0)


def test_what_is_left_out_of_a_rollout_means_none() -> None:
    result = LaneSamples(prompts(0, 1))
    assert (result.metrics, result.digest, result.rollout_log) == ({}, 0, ())
    assert Loss(torch.zeros(()), {}).carried == {}


@pytest.mark.parametrize("is_recomputation", [None, False, True])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_method_is_given_all_that_it_needs_to_answer(is_recomputation: bool | None, precision: str) -> None:
    """Who makes a lane again asks no judge; nobody is asked whether to stop who may not abandon."""
    method, model, reward_cache = PromptRows(), model_of(), FakeRewardCache()
    choices = {"max_micro_batch_tokens": 64, "reward_cache": reward_cache, "is_stopping": lambda: True}
    forward = forward_of(method, precision=precision, **choices)
    entered: list[str] = []
    again = {} if is_recomputation is None else {"is_recomputation": is_recomputation}
    lanes = [prompts(0, 1, 2), prompts(1, 3)]
    trained = forward.training_samples(lambda: model, lanes, step=3, enter_phase=entered.append, **again)
    requested = {"lanes": [0, 1], "step": 3, "seed": seed_of(3), "max_tokens": 64, "is_plain": True}
    assert method.requested == [
        {
            **requested,
            "reward_cache": "read only" if is_recomputation else reward_cache,
            "is_mixed": precision == "bfloat16",
        }
    ]
    assert entered == ["generation"]
    assert [rows_of(result.lane) for result in trained] == [
        [method.sampled_tokens(model, row, seed_of(3)) for row in rows_of(lane)] for lane in lanes
    ]
    assert forward.uses_rollouts and forward.rollout_costs == {"decode_s": 0.5} and forward.parts == {}


def test_without_a_book_there_is_none_to_read() -> None:
    method = PromptRows()
    forward_of(method).training_samples(model_of, [prompts(0, 1)], step=1, is_recomputation=True)
    assert method.requested[0]["reward_cache"] is None and method.requested[0]["max_tokens"] is None


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_rank_that_is_asked_to_stop_abandons_what_it_may(staleness: int) -> None:
    stopping = forward_of(PromptRows(staleness=staleness), is_stopping=lambda: True)
    for _ in range(2):
        with pytest.raises(GenerationCancelledError):
            stopping.training_samples(model_of, [prompts(0, 1)], step=1, is_cancellable=True)
    assert stopping.training_samples(model_of, [prompts(0, 1)], step=1), "nobody may abandon it"
    going = forward_of(PromptRows(staleness=staleness))
    assert going.training_samples(model_of, [prompts(0, 1)], step=1, is_cancellable=True), "nobody asks it to stop"


@pytest.mark.parametrize("staleness", [1, 2])
def test_what_is_learned_was_said_so_many_steps_before(staleness: int) -> None:
    method, last = PromptRows(staleness=staleness), 6
    forward = forward_of(method, lanes=(0, 1), reward_cache=FakeRewardCache())
    of_step = {step: [prompts(lane, 10 * step + lane) for lane in (0, 1)] for step in range(1, last + 1)}
    for step in range(1, last + 1):
        upcoming = [of_step[item] for item in range(step + 1, min(step + staleness, last) + 1)]
        method.requested.clear()
        trained = forward.training_samples(
            lambda step=step: model_of(step), of_step[step], step=step, upcoming=upcoming
        )
        new = range(1, staleness + 2) if step == 1 else range(step + staleness, last + 1)[:1]
        assert [requested["step"] for requested in method.requested] == list(new)
        assert all(isinstance(requested["reward_cache"], FakeRewardCache) for requested in method.requested)
        policy = model_of(max(1, step - staleness))
        for result, lane in zip(trained, of_step[step], strict=True):
            assert rows_of(result.lane) == [method.sampled_tokens(policy, row, seed_of(step)) for row in rows_of(lane)]
        assert forward.training_samples(nobody, of_step[step], step=step, upcoming=upcoming) == trained, "it is there"
        forward.release(step=step)
        held = forward.parts[ROLLOUTS]
        assert [item for item in of_step if held.has(item, 1)] == list(  # type: ignore[attr-defined]
            range(step + 1, min(step + staleness, last) + 1)
        )


def test_the_weights_are_gathered_once_for_all_that_is_missing() -> None:
    gathered: list[nn.Module] = []

    def whole_model() -> nn.Module:
        gathered.append(model_of())
        return gathered[-1]

    method = PromptRows(staleness=2)
    forward = forward_of(method)
    entered: list[str] = []
    upcoming = [[prompts(0, 2)], [prompts(0, 3)]]
    forward.training_samples(whole_model, [prompts(0, 1)], step=1, upcoming=upcoming, enter_phase=entered.append)
    assert len(gathered) == 1 and len(method.requested) == 3 and entered == ["generation"] * 3


def test_a_step_whose_lanes_were_answered_in_part_is_answered_anew() -> None:
    """As where a rank took over lanes of others whose answers were lost."""
    method = PromptRows(staleness=1)
    forward = forward_of(method)
    forward.training_samples(model_of, [prompts(0, 1)], step=1)
    method.requested.clear()
    forward.training_samples(model_of, [prompts(0, 1), prompts(1, 2)], step=1)
    assert [requested["lanes"] for requested in method.requested] == [[0, 1]]


def steps_held(forward: LaneForward) -> list[int]:
    held = forward.parts[ROLLOUTS]
    return [step for step in range(9) if held.has(step, 0)]  # type: ignore[attr-defined]


def test_what_an_abandoned_step_said_is_not_learned_later() -> None:
    is_requested = iter([False, False, False, False, True])
    forward = forward_of(PromptRows(staleness=2), is_stopping=lambda: next(is_requested))
    lanes = {step: [prompts(0, step)] for step in range(1, 6)}
    forward.training_samples(model_of, lanes[1], step=1, upcoming=[lanes[2], lanes[3]], is_cancellable=True)
    assert steps_held(forward) == [1, 2, 3]
    with pytest.raises(GenerationCancelledError):
        forward.training_samples(
            model_of, lanes[2], step=2, upcoming=[lanes[3], lanes[4], lanes[5]], is_cancellable=True
        )
    assert steps_held(forward) == [1, 2, 3], "step 4 was said, step 5 was not"


def test_abandoning_a_step_forgets_what_its_weights_said() -> None:
    forward = forward_of(PromptRows(staleness=1))
    forward.training_samples(model_of, [prompts(0, 1)], step=1, upcoming=[[prompts(0, 2)]])
    forward.training_samples(model_of, [prompts(0, 2)], step=2, upcoming=[[prompts(0, 3)]])
    forward.cancel(step=2)
    assert steps_held(forward) == [1, 2]
    forward.cancel(step=1)
    assert steps_held(forward) == []


def test_another_rank_says_again_what_a_lane_said_ahead() -> None:
    method, model = PromptRows(staleness=1), model_of(4)
    forward = forward_of(method)
    share = StepShare(Cursor(), (prompts(0, 1), prompts(3, 2)), upcoming=((prompts(0, 5), prompts(3, 6)),))
    trained = forward.training_samples(lambda: model, share.lanes, step=1, upcoming=share.upcoming)
    checked = forward.for_recomputation(share, step=1)
    other = forward_of(PromptRows(staleness=1), reward_cache=FakeRewardCache(), is_stopping=lambda: True)
    for lane, result, position in zip(checked.lanes, trained, range(2), strict=True):
        assert isinstance(lane, BufferedLane)
        assert [step for step, _ in lane.upcoming] == [1, 2] and lane.micro_batches == result.lane.micro_batches
        assert lane.upcoming[0][1] is share.lanes[position] and lane.upcoming[1][1] is share.upcoming[0][position]
        assert other.regenerated_digests(lambda: model, lane) == list(lane.rollout_digests)
        assert other.regenerated_digests(lambda: model_of(5), lane) != list(lane.rollout_digests)
        assert other.training_samples(nobody, [lane], step=1) == [LaneSamples(lane)], "it was answered"
    assert checked.cursor == share.cursor and checked.upcoming == share.upcoming
    assert other.regenerated_digests(nobody, BufferedLane(0, ())) == []


class Sharded:
    """Stands for shards of one rank: all of the weights."""

    def __init__(self, model: nn.Module) -> None:
        self.module = model

    def whole_model(self) -> nn.Module:
        return self.module

    def most_passes(self, num_passes: int) -> int:
        return num_passes

    def separate_pass(self, index: int, notified: object) -> AbstractContextManager[None]:
        return nullcontext()


def test_who_says_a_lane_again_asks_no_judge() -> None:
    lane = BufferedLane(0, (), upcoming=((4, prompts(0, 5)),), rollout_digests=(1,))
    method = PromptRows(staleness=1)
    forward_of(method, reward_cache=FakeRewardCache()).regenerated_digests(model_of, lane)
    assert [(requested["step"], requested["reward_cache"]) for requested in method.requested] == [(4, "read only")]
    method = PromptRows()
    LaneRecomputer(forward_of(method, reward_cache=FakeRewardCache()), model_of()).training_samples(
        prompts(0, 5), step=2
    )
    assert [(requested["step"], requested["reward_cache"]) for requested in method.requested] == [(2, "read only")]
    method, sharded = PromptRows(), Sharded(model_of())
    ShardedLaneRecomputer(forward_of(method, reward_cache=FakeRewardCache()), sharded).digest(prompts(0, 5), step=2)  # type: ignore[arg-type]
    assert [(requested["step"], requested["reward_cache"]) for requested in method.requested] == [(2, "read only")]


def test_an_answer_by_itself_is_made_as_the_lane_makes_it() -> None:
    method, model, reward_cache = PromptRows(), model_of(), FakeRewardCache()
    forward = forward_of(method, precision="bfloat16", reward_cache=reward_cache)
    message = forward.rollout(model, prompts(2, 4, 5), step=3, row_id=5, sample=1)
    assert message == method.sampled_tokens(model, 5, seed_of(3))
    [requested] = method.requested
    assert requested == {
        "lanes": [2], "row_id": 5, "sample": 1, "step": 3, "seed": seed_of(3), "reward_cache": reward_cache,
        "is_plain": True, "is_mixed": True,
    }  # fmt: skip


def with_others(heard: list[Any]) -> Callable[[list[list[float]]], list[list[float]]]:
    """As if another rank had lane 9, whose answers were paid 30 by four."""

    def gather_lanes(own: list[list[float]]) -> list[list[float]]:
        heard.extend(own)
        return [*own, [9.0, 30.0, 4.0]]

    return gather_lanes


def test_lanes_are_settled_by_the_means_of_all_and_again_by_those_of_their_step() -> None:
    forward, heard = forward_of(PromptRows(step_statistics=("shaped_reward",))), []
    result = forward.training_samples(model_of, [prompts(0, 1, 2), prompts(1, 3)], step=2)
    rewards = [sum(rows_of(item.lane)) for item in result]
    shift = round((sum(rewards) + 30) / (3 + 4))
    normalize_advantages = forward.normalize_advantages(result, step=2, gather_lanes=with_others(heard))
    assert heard == [[0.0, rewards[0], 2.0], [1.0, rewards[1], 1.0]]
    for before, after in zip(result, normalize_advantages, strict=True):
        assert rows_of(after.lane) == [row + shift for row in rows_of(before.lane)]
        assert after._replace(lane=before.lane) == before
    [again] = forward.normalize_advantages(result[1:], step=2)
    assert rows_of(again.lane) == rows_of(normalize_advantages[1].lane)
    with pytest.raises(AssertionError):
        forward.normalize_advantages(result, step=3)


@pytest.mark.parametrize("method", [NoisyRegression(), PromptRows()])
def test_where_no_mean_is_wanted_nobody_is_asked_for_it(method: Any) -> None:
    heard: list[Any] = []
    result = [LaneSamples(prompts(0, 1))]
    assert (
        forward_of(method).normalize_advantages(result, step=1, gather_lanes=with_others(heard)) == result and not heard
    )


def test_what_no_step_settled_cannot_be_made_again() -> None:
    for step in (1, 2):
        with pytest.raises(AssertionError):
            forward_of(PromptRows(step_statistics=("shaped_reward",))).normalize_advantages(
                [LaneSamples(prompts(0, 1))], step=step
            )


def test_means_are_of_sums_in_the_order_of_lanes_over_what_weighs_something() -> None:
    lanes = [[0.0, 1e16, 1.0, 5.0, 0.0], [1.0, 1.0, 1.0, 7.0, 0.0], [2.0, -1e16, 2.0, 9.0, 0.0]]
    assert means_of(["a", "b"], lanes) == {"a": ((1e16 + 1.0) - 1e16) / 4}
    assert means_of(["a"], [[7.0, 6.0, 3.0]]) == {"a": 2.0}
    assert means_of([], [[0.0], [1.0]]) == {}


def test_a_method_may_refuse_a_step_by_its_metrics() -> None:
    method = PromptRows()
    forward_of(method).check_step({"shaped_reward": 1.0}, step=4)
    assert method.checked == [(4, {"shaped_reward": 1.0})]


def error_of(model: nn.Module, rows: Sequence[int], *key: Any) -> torch.Tensor:
    """As anybody would write it down."""
    torch.manual_seed(derive_key(SEED, "forward", *key))
    points = torch.tensor([[row / 10, 0.0, 0.0] for row in rows])
    points[:, 1], points[:, 2] = torch.tensor(rows).float().sin(), torch.tensor(rows).float().cos()
    return (model(points) + torch.rand(len(rows), 1)).square().sum()


def test_a_later_update_has_noise_of_its_own_and_what_the_first_one_found() -> None:
    forward, model, lane = forward_of(PromptRows(updates_per_rollout=3)), model_of(), prompts(2, 4, 5)
    two = LaneShare(2, (*lane.micro_batches, micro_batch([6])))
    first = [forward.loss(model, two, index, step=7).sum.item() for index in (0, 1)]
    assert first == pytest.approx([error_of(model, [4, 5], 7, 2, 0).item(), error_of(model, [6], 7, 2, 1).item()])
    for update in (1, 2):
        for index, rows in enumerate([[4, 5], [6]]):
            loss = forward.loss(model, two, index, step=7, update=update).sum.item()
            again = error_of(model, rows, 7, 2, index, "update", update).item()
            assert loss == pytest.approx(again * (1 + first[index]))
    assert forward.updates_per_step == 3


def test_nothing_is_kept_of_a_step_that_makes_one_update() -> None:
    forward = forward_of(PromptRows())
    forward.loss(model_of(), prompts(2, 4), 0, step=7)
    assert not forward._carried


def test_the_lane_and_rows_whose_loss_is_computed_can_be_told() -> None:
    forward, lane, seen = forward_of(Failing(), precision="bfloat16"), prompts(2, 4), []
    with failing(lambda: seen.append((forward.is_under_way, forward.lane, forward.micro_batch))):
        forward.loss(model_of(), lane, 0, step=7)
    assert seen == [(True, 2, lane.micro_batches[0])] and not forward.is_under_way
    assert forward.micro_batch is lane.micro_batches[0]
    with failing(lambda: seen.append((forward.is_under_way, forward.lane, forward.micro_batch))):
        forward.loss(model_of(), lane, 1, step=7)
    assert seen[1] == (False, None, None), "a blank is of no lane"


class Failing(NoisyRegression):
    """Shows itself to who looks, and fails."""

    look: Callable[[], None]

    def loss(self, model: nn.Module, tensors: Any, frozen_models: Any) -> Loss:
        assert torch.is_autocast_enabled("cpu")
        Failing.look()
        raise ArithmeticError("as planned")


@contextmanager
def failing(look: Callable[[], None]) -> Iterator[None]:
    Failing.look = staticmethod(look)  # type: ignore[assignment]
    with pytest.raises(ArithmeticError, match="as planned"):
        yield


class Offset(NoisyRegression):
    """Reports the sum of a blank as a number that is not zero."""

    def loss(self, model: nn.Module, tensors: Any, frozen_models: Any) -> Loss:
        error = model(tensors["points"]).sum()
        return Loss(error + 3.0, {name: MetricSum(error.detach() + 2.0, 5.0) for name in self.metrics})


def test_what_a_blank_finds_counts_as_zero() -> None:
    model = model_of()
    loss = forward_of(Offset()).loss(model, prompts(0, 1), 1, step=1)
    assert loss.sum.item() == 0.0
    assert [(metric.sum.item(), metric.weight) for metric in loss.metrics.values()] == [(0.0, 0.0)] * 2
    loss.sum.backward()  # type: ignore[no-untyped-call]
    assert model.weight.grad is not None and not model.weight.grad.any()
