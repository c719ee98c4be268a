"""What a lane learns from: rows, answers, or answers of steps before; made with which keys, and by whom."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from assay.base.seeds import derive_key
from assay.data.loader.batch import LaneShare, StepShare
from assay.records.cursor import Cursor
from assay.training.checkpoint.parts import ROLLOUTS
from assay.training.rollouts.buffer import BufferedLane
from assay.training.rollouts.source import Rollouts
from assay.training.samples import DatasetRows, LaneSamples, StepCancelledError
from assay.training.trainer.lane_forward import LaneForward
from assay.training.trainer.lane_recomputer import LaneRecomputer, ShardedLaneRecomputer
from noisy_regression import PromptRows, micro_batch

CPU = torch.device("cpu")
SEED = 11


class FakeRewardCache:
    """Says which of its faces was shown."""

    def read_only(self) -> str:
        return "read only"


class Weights:
    """The sum over lanes of one rank, as far as a source knows it; the weights may be those of a step."""

    gathers_weights = False

    def __init__(self, model: nn.Module | None, lanes: Sequence[int]) -> None:
        self.model = model
        self.shares = SimpleNamespace(of_rank=lambda rank: tuple(lanes), most=len(lanes))
        self.entered: list[str] = []
        self.num_gathered = 0

    def enter_phase(self, name: str) -> None:
        self.entered.append(name)

    def whole_model(self) -> nn.Module:
        assert self.model is not None, "nothing is made, so no weights are gathered"
        self.num_gathered += 1
        return self.model

    def most_passes(self, num_passes: int) -> int:
        return num_passes

    def separate_pass(self, index: int, notified: object) -> AbstractContextManager[None]:
        return nullcontext()

    @property
    def module(self) -> nn.Module:
        return self.whole_model()


class Alone:
    """Ranks of which others may add lanes of their own, or be asked to stop."""

    rank = 0

    def __init__(self, others: Sequence[list[float]] = (), *, another_stops: bool = False) -> None:
        self.others = list(others)
        self.another_stops = another_stops
        self.heard: list[list[float]] = []

    def all_gather_numbers(self, numbers: Sequence[int]) -> list[list[int]]:
        return [list(numbers), [int(self.another_stops)]]

    def all_gather_lanes(self, lanes: list[list[float]], *, most: int) -> list[list[float]]:
        self.heard += lanes
        return [*lanes, *self.others]


def model_of(number: int = 0) -> nn.Module:
    torch.manual_seed(number)
    return nn.Linear(3, 1)


def source_of(
    method: Any,
    model: nn.Module | None = None,
    *,
    lanes: Sequence[int] = (0, 1),
    ranks: Alone | None = None,
    **choices: Any,
) -> tuple[Rollouts, Weights]:
    weights, forward = Weights(model, lanes), LaneForward(method, device=CPU, precision="float32", seed=SEED)
    parts = {"frozen_models": forward.frozen_models, "autocast": forward.autocast, "seed": SEED, **choices}
    return Rollouts(method, weights, ranks or Alone(), **parts), weights  # type: ignore[arg-type]


def prompts(lane: int, *rows: int) -> LaneShare:
    return LaneShare(lane, (micro_batch(rows),))


def share_of(*lanes: LaneShare, upcoming: Sequence[Sequence[LaneShare]] = ()) -> StepShare:
    return StepShare(Cursor(), lanes, upcoming=tuple(map(tuple, upcoming)))


def rows_of(lane: LaneShare) -> list[int]:
    return [int(row) for batch in lane.micro_batches for row in batch.row_ids]


def seed_of(step: int) -> int:
    return derive_key(SEED, "rollout", step)


def steps_held(source: Rollouts, lane: int = 0) -> list[int]:
    held = source.parts[ROLLOUTS]
    return [step for step in range(12) if held.has(step, lane)]  # type: ignore[attr-defined]


def test_rows_that_are_no_prompts_are_learned_as_they_are() -> None:
    source, share = DatasetRows(), share_of(prompts(0, 1), prompts(1, 2))
    assert source.collect(share, step=1) == [LaneSamples(lane) for lane in share.lanes]
    assert (source.updates_per_step, source.lookahead, source.costs, dict(source.parts)) == (1, 0, None, {})
    source.check({}, step=1)
    source.release(step=1)
    [first, _] = share.lanes
    assert source.for_recomputation(share, step=1) is share and source.recollect(first, step=1) is first
    assert source.recollect_further(first) == []


def test_what_is_left_out_of_samples_means_none() -> None:
    samples = LaneSamples(prompts(0, 1))
    assert (samples.metrics, samples.digest, samples.log) == ({}, 0, None)


@pytest.mark.parametrize("is_recomputation", [False, True])
@pytest.mark.parametrize("is_mixed", [False, True])
def test_a_method_is_given_all_that_it_needs_to_answer(is_recomputation: bool, is_mixed: bool) -> None:
    """Who makes a lane again asks no judge; nobody is asked whether to stop who may not abandon."""
    method, model, reward_cache = PromptRows(), model_of(), FakeRewardCache()
    source, weights = source_of(
        method,
        model,
        autocast=torch.autocast("cpu", torch.bfloat16) if is_mixed else nullcontext(),
        max_tokens=64,
        reward_cache=reward_cache,
        is_stopping=lambda: is_recomputation,
    )
    lanes = [prompts(0, 1, 2), prompts(1, 3)]
    if is_recomputation:
        trained = [source.recollect(lanes[0], step=3)]
    else:
        trained = [samples.lane for samples in source.collect(share_of(*lanes), step=3)]
    lanes = lanes[: len(trained)]
    assert method.requested == [
        {
            "lanes": [lane.lane for lane in lanes],
            "step": 3,
            "seed": seed_of(3),
            "max_tokens": 64,
            "is_plain": True,
            "reward_cache": "read only" if is_recomputation else reward_cache,
            "is_mixed": is_mixed,
        }
    ]
    assert weights.entered == ([] if is_recomputation else ["generation", "communication"])
    assert [rows_of(lane) for lane in trained] == [
        [method.sampled_tokens(model, row, seed_of(3)) for row in rows_of(lane)] for lane in lanes
    ]
    assert source.costs == (None if is_recomputation else {"decode_s": 0.5}) and source.parts == {}


def test_without_a_book_there_is_none_to_read() -> None:
    method = PromptRows()
    source_of(method, model_of())[0].recollect(prompts(0, 1), step=1)
    assert method.requested[0]["reward_cache"] is None and method.requested[0]["max_tokens"] is None


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_rank_that_is_asked_to_stop_abandons_what_it_may(staleness: int) -> None:
    method = PromptRows(staleness=staleness)
    stopping, _ = source_of(method, model_of(), is_stopping=lambda: True)
    for _ in range(2):
        with pytest.raises(StepCancelledError):
            stopping.collect(share_of(prompts(0, 1)), step=1)
    assert stopping.recollect(prompts(0, 1), step=1), "nobody may abandon it"
    going, _ = source_of(PromptRows(staleness=staleness), model_of())
    assert going.collect(share_of(prompts(0, 1)), step=1), "nobody asks it to stop"


@pytest.mark.parametrize("staleness", [1, 2])
def test_what_is_learned_was_said_so_many_steps_before(staleness: int) -> None:
    method, last = PromptRows(staleness=staleness), 6
    source, weights = source_of(method, reward_cache=FakeRewardCache())
    of_step = {step: [prompts(lane, 10 * step + lane) for lane in (0, 1)] for step in range(1, last + 1)}
    for step in range(1, last + 1):
        upcoming = [of_step[item] for item in range(step + 1, min(step + staleness, last) + 1)]
        method.requested.clear()
        weights.model = model_of(step)
        trained = source.collect(share_of(*of_step[step], upcoming=upcoming), step=step)
        new = range(1, staleness + 2) if step == 1 else range(step + staleness, last + 1)[:1]
        assert [requested["step"] for requested in method.requested] == list(new)
        assert all(isinstance(requested["reward_cache"], FakeRewardCache) for requested in method.requested)
        policy = model_of(max(1, step - staleness))
        for result, lane in zip(trained, of_step[step], strict=True):
            assert rows_of(result.lane) == [method.sampled_tokens(policy, row, seed_of(step)) for row in rows_of(lane)]
        weights.model = None
        assert source.collect(share_of(*of_step[step], upcoming=upcoming), step=step) == trained, "it is there"
        source.release(step=step)
        assert steps_held(source, 1) == list(range(step + 1, min(step + staleness, last) + 1))


def test_the_weights_are_gathered_once_for_all_that_is_missing() -> None:
    method = PromptRows(staleness=2)
    source, weights = source_of(method, model_of())
    weights.gathers_weights = True
    source.collect(share_of(prompts(0, 1), upcoming=[[prompts(0, 2)], [prompts(0, 3)]]), step=1)
    assert weights.num_gathered == 1 and len(method.requested) == 3
    assert weights.entered == ["synchronisation", *["generation"] * 3, "communication"]


def test_a_step_whose_lanes_were_answered_in_part_is_answered_anew() -> None:
    """As where a rank took over lanes of others whose answers were lost."""
    method = PromptRows(staleness=1)
    source, _ = source_of(method, model_of())
    source.collect(share_of(prompts(0, 1)), step=1)
    method.requested.clear()
    source.collect(share_of(prompts(0, 1), prompts(1, 2)), step=1)
    assert [requested["lanes"] for requested in method.requested] == [[0, 1]]


def test_what_an_abandoned_step_said_is_not_learned_later() -> None:
    is_requested = iter([False, False, False, False, True])
    source, _ = source_of(PromptRows(staleness=2), model_of(), is_stopping=lambda: next(is_requested))
    lanes = {step: [prompts(0, step)] for step in range(1, 6)}
    source.collect(share_of(*lanes[1], upcoming=[lanes[2], lanes[3]]), step=1)
    assert steps_held(source) == [1, 2, 3]
    with pytest.raises(StepCancelledError):
        source.collect(share_of(*lanes[2], upcoming=[lanes[3], lanes[4], lanes[5]]), step=2)
    assert steps_held(source) == [1, 2, 3], "step 4 was said, step 5 was not"


def test_a_step_that_another_rank_abandons_forgets_what_its_weights_said() -> None:
    ranks = Alone()
    source, _ = source_of(PromptRows(staleness=1), model_of(), ranks=ranks)
    source.collect(share_of(prompts(0, 1), upcoming=[[prompts(0, 2)]]), step=1)
    ranks.another_stops = True
    with pytest.raises(StepCancelledError):
        source.collect(share_of(prompts(0, 2), upcoming=[[prompts(0, 3)]]), step=2)
    assert steps_held(source) == [1, 2]
    with pytest.raises(StepCancelledError):
        source.collect(share_of(prompts(0, 1)), step=1)
    assert steps_held(source) == []


def test_another_rank_says_again_what_a_lane_said_ahead() -> None:
    model = model_of(4)
    source, _ = source_of(PromptRows(staleness=1), model, lanes=(0, 3))
    share = share_of(prompts(0, 1), prompts(3, 2), upcoming=[[prompts(0, 5), prompts(3, 6)]])
    trained = source.collect(share, step=1)
    checked = source.for_recomputation(share, step=1)
    other, weights = source_of(
        PromptRows(staleness=1), reward_cache=FakeRewardCache(), is_stopping=lambda: True, lanes=(7,)
    )
    for lane, result, position in zip(checked.lanes, trained, range(2), strict=True):
        assert isinstance(lane, BufferedLane)
        assert [step for step, _ in lane.upcoming] == [1, 2] and lane.micro_batches == result.lane.micro_batches
        assert lane.upcoming[0][1] is share.lanes[position] and lane.upcoming[1][1] is share.upcoming[0][position]
        weights.model = None
        assert other.recollect(lane, step=1) is lane, "it was answered"
        weights.model = model
        assert other.recollect_further(lane) == list(lane.further_digests)
        weights.model = model_of(5)
        assert other.recollect_further(lane) != list(lane.further_digests)
    assert checked.cursor == share.cursor and checked.upcoming == share.upcoming
    weights.model = None
    assert other.recollect_further(BufferedLane(0, ())) == []


def test_who_says_a_lane_again_asks_no_judge() -> None:
    lane = BufferedLane(0, (), further_digests=(1,), upcoming=((4, prompts(0, 5)),))
    method = PromptRows(staleness=1)
    source_of(method, model_of(), reward_cache=FakeRewardCache())[0].recollect_further(lane)
    assert [(requested["step"], requested["reward_cache"]) for requested in method.requested] == [(4, "read only")]
    for is_sharded in (False, True):
        method, forward = PromptRows(), LaneForward(PromptRows(), device=CPU, precision="float32", seed=SEED)
        source, weights = source_of(method, model_of(), reward_cache=FakeRewardCache())
        recomputer = (
            ShardedLaneRecomputer(forward, source, weights)  # type: ignore[arg-type]
            if is_sharded
            else LaneRecomputer(forward, source, weights.whole_model())
        )
        recomputer.digest(prompts(0, 5), step=2)
        assert [(requested["step"], requested["reward_cache"]) for requested in method.requested] == [(2, "read only")]


def test_an_answer_by_itself_is_made_as_the_lane_makes_it() -> None:
    method, model, reward_cache = PromptRows(), model_of(), FakeRewardCache()
    mixed = torch.autocast("cpu", torch.bfloat16)
    source, _ = source_of(method, model, autocast=mixed, reward_cache=reward_cache)
    message = source.replayed(prompts(2, 4, 5), step=3, row_id=5, sample=1)
    assert message == method.sampled_tokens(model, 5, seed_of(3))
    [requested] = method.requested
    assert requested == {
        "lanes": [2], "row_id": 5, "sample": 1, "step": 3, "seed": seed_of(3), "reward_cache": reward_cache,
        "is_plain": True, "is_mixed": True,
    }  # fmt: skip


def test_lanes_are_settled_by_the_means_of_all_and_again_by_those_of_their_step() -> None:
    """Another rank has lane 9, whose answers were paid 30 by four."""
    method, ranks = PromptRows(step_statistics=("shaped_reward",)), Alone([[9.0, 30.0, 4.0]])
    source, _ = source_of(method, model_of(), ranks=ranks)
    plain, _ = source_of(PromptRows(), model_of())
    lanes = prompts(0, 1, 2), prompts(1, 3)
    before, after = (samples_of.collect(share_of(*lanes), step=2) for samples_of in (plain, source))
    rewards = [sum(rows_of(samples.lane)) for samples in before]
    shift = round((sum(rewards) + 30) / (3 + 4))
    assert ranks.heard == [[0.0, rewards[0], 2.0], [1.0, rewards[1], 1.0]]
    for one, other in zip(before, after, strict=True):
        assert rows_of(other.lane) == [row + shift for row in rows_of(one.lane)]
        assert (other.digest, other.log) == (one.digest, one.log)
    assert rows_of(source.recollect(lanes[1], step=2)) == rows_of(after[1].lane)
    with pytest.raises(AssertionError):
        source.recollect(lanes[1], step=3)


def test_where_no_mean_is_wanted_nobody_is_asked_for_it() -> None:
    ranks = Alone()
    source_of(PromptRows(), model_of(), ranks=ranks)[0].collect(share_of(prompts(0, 1)), step=1)
    assert not ranks.heard


def test_what_no_step_settled_cannot_be_made_again() -> None:
    for step in (1, 2):
        source, _ = source_of(PromptRows(step_statistics=("shaped_reward",)), model_of())
        with pytest.raises(AssertionError):
            source.recollect(prompts(0, 1), step=step)


def test_a_method_may_refuse_a_step_by_its_metrics() -> None:
    method = PromptRows()
    source_of(method)[0].check({"shaped_reward": 1.0}, step=4)
    assert method.checked == [(4, {"shaped_reward": 1.0})]
