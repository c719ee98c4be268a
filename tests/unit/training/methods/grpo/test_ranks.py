"""A step of rollouts on several ranks: one result for all of them, and who sampled wrongly is named."""

from pathlib import Path
from typing import Any

import pytest
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from agreement.tiny_models import save_tiny
from assay.data.loader.batch import StepShare
from assay.data.loader.lane_shares import LaneShares
from assay.data.loader.loader import with_lookahead
from assay.distributed.ranks import Ranks
from assay.records.cursor import Cursor
from assay.records.suspect import WrongArithmeticError
from assay.training.checkpoint.parts import ROLLOUTS, model_state
from assay.training.methods.grpo.method import GrpoMethod
from assay.training.samples import StepCancelledError
from assay.training.trainer.config import OptimizerConfig
from assay.training.trainer.lane_forward import LaneForward
from assay.training.trainer.lane_recomputer import LaneRecomputer, ShardedLaneRecomputer
from assay.training.trainer.optimizer import build_optimizer, whole_tensor
from assay.training.trainer.spot_check import SpotCheck
from assay.training.trainer.step import Stepper, initial_model
from forked_ranks import on_ranks
from prompt_rows import grpo_config, prompt_lane
from shared_lanes import lane_sum_of, source_of

LANES, SEED = 4, 5
any_parallel = pytest.mark.parametrize("shards_weights", [False, pytest.param(True, marks=pytest.mark.slow)])
BY_THE_STEP = {"advantage_scale": "step"}
"""What one rank learns from the answers of another: the deviation of what all were paid."""
CONFIG = OptimizerConfig(learning_rate=1e-2)


class ChangesOneToken(GrpoMethod):
    """Once, of every answer."""

    has_failed = False

    def _generate(self, *arguments: Any) -> Any:
        completions = super()._generate(*arguments)
        if not self.has_failed:
            self.has_failed = True
            for completion in completions:
                completion.tokens[0] ^= 1
        return completions


def forward_of(method: GrpoMethod, ranks: Ranks) -> LaneForward:
    updates = method.updates_per_rollout
    return LaneForward(method, device=ranks.device, precision="float32", seed=SEED, updates_per_step=updates)


def steps_on(
    ranks: Ranks,
    base: Path,
    *,
    wrong_rank: int | None = None,
    num_steps: int = 2,
    resumes_before: int | None = None,
    **keys: Any,
) -> Any:
    """Some steps, all spot-checked: what was said and learned, or who is suspected.

    What waits to be learned is handed on before step `resumes_before` as a commit has it.
    """
    method = (ChangesOneToken if ranks.rank == wrong_rank else GrpoMethod)(grpo_config(base, **keys))
    model = initial_model(method, seed=SEED, device=ranks.device)
    is_sharded = ranks.inner is not None
    lanes = LaneShares(LANES, ranks.world_size, interleaved=is_sharded).of_rank(ranks.rank)
    forward = LaneForward(
        method, device=ranks.device, precision="float32", seed=SEED, updates_per_step=method.updates_per_rollout
    )
    lane_sum = lane_sum_of(model, ranks, LANES, gathers=True)
    source = source_of(method, forward, lane_sum, ranks, SEED)
    recomputer = (
        ShardedLaneRecomputer(forward, source, lane_sum) if is_sharded else LaneRecomputer(forward, source, model)
    )
    check = SpotCheck(recomputer, lane_sum, ranks, is_due=lambda step: True, seed=SEED)
    optimizer = build_optimizer(model, CONFIG)
    stepper = Stepper(source, forward, lane_sum, optimizer, ranks, config=CONFIG, num_steps=num_steps, spot_check=check)
    found = []
    try:
        shares = (
            tuple(prompt_lane(lane, [10 * step + 2 * lane, 10 * step + 2 * lane + 1]) for lane in lanes)
            for step in range(1, num_steps + 1)
        )
        steps = with_lookahead((StepShare(Cursor(), of_step) for of_step in shares), source.lookahead)
        for step, share in enumerate(steps, 1):
            if step == resumes_before:
                waiting = source.parts[ROLLOUTS]
                retained = waiting.state()
                waiting.restore(retained)
            totals = stepper.step(share, step=step, stop_requested=False)
            assert totals.is_verified
            retained = {name: totals.digests[name] for name in ("rollout_digest", "gradient_digest")}
            found.append(
                (totals.num_rows, totals.num_tokens, totals.weight, totals.loss, dict(totals.metrics), retained)
            )
    except WrongArithmeticError as error:
        return [(suspect.rank, suspect.lane, suspect.is_certain) for suspect in error.suspects]
    weights = [float(whole_tensor(weight).double().sum()) for weight in model_state(model).values()]
    return found, weights


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(LlamaForCausalLM, tmp_path_factory.mktemp("base") / "model", seed=1)


@any_parallel
def test_ranks_say_and_learn_what_one_rank_does(shards_weights: bool, base: Path, tmp_path: Path) -> None:
    [alone] = on_ranks(1, lambda ranks: steps_on(ranks, base, **BY_THE_STEP), tmp_path / "1")
    steps, _ = alone
    assert [step[0] for step in steps] == [8, 8], "rows are prompts"
    of_ranks = on_ranks(
        2,
        lambda ranks: steps_on(ranks, base, **BY_THE_STEP),
        tmp_path / "2",
        shards_weights=shards_weights,
    )
    assert of_ranks == [alone] * 2


@any_parallel
def test_a_rank_that_sampled_another_token_is_named(shards_weights: bool, base: Path, tmp_path: Path) -> None:
    of_ranks = on_ranks(2, lambda ranks: steps_on(ranks, base, wrong_rank=1), tmp_path, shards_weights=shards_weights)
    assert of_ranks[0] == of_ranks[1]
    [(rank, lane, is_certain)] = of_ranks[0]
    assert (rank, is_certain) == (1, True) and lane in ((1, 3) if shards_weights else (2,))


def abandoned_on(ranks: Ranks, base: Path) -> tuple[bool, bool]:
    """Rank 1 is asked to stop after some tokens: whether it came so far, and whether the weights stand."""
    requested = 0

    def is_stopping() -> bool:
        nonlocal requested
        requested += 1
        return ranks.rank == 1 and requested > 3

    method = GrpoMethod(grpo_config(base))
    model = initial_model(method, seed=SEED, device=ranks.device)
    forward = LaneForward(
        method, device=ranks.device, precision="float32", seed=SEED, updates_per_step=method.updates_per_rollout
    )
    is_sharded = ranks.inner is not None
    lane_sum = lane_sum_of(model, ranks, LANES, gathers=True)
    source = source_of(method, forward, lane_sum, ranks, SEED, is_stopping=is_stopping)
    stepper = Stepper(source, forward, lane_sum, build_optimizer(model, CONFIG), ranks, config=CONFIG, num_steps=2)
    lanes = LaneShares(LANES, ranks.world_size, interleaved=is_sharded).of_rank(ranks.rank)
    rows = tuple(prompt_lane(lane, [2 * lane, 2 * lane + 1]) for lane in lanes)

    def weights() -> float:
        return sum(float(whole_tensor(weight).double().sum()) for weight in model_state(model).values())

    before = weights()
    with pytest.raises(StepCancelledError):
        stepper.step(StepShare(Cursor(), rows), step=1, stop_requested=False)
    return requested > 3, weights() == before


@any_parallel
def test_a_step_that_one_rank_abandons_is_made_by_none(shards_weights: bool, base: Path, tmp_path: Path) -> None:
    found = on_ranks(2, lambda ranks: abandoned_on(ranks, base), tmp_path, shards_weights=shards_weights)
    assert found == [(True, True)] * 2


@any_parallel
def test_a_step_says_when_it_gathers_answers_and_grades_and_what_that_took(
    shards_weights: bool, base: Path, tmp_path: Path
) -> None:
    of_ranks = on_ranks(2, lambda ranks: accused(ranks, base), tmp_path, shards_weights=shards_weights)
    gathered = ["synchronisation"] if shards_weights else []
    for entered, costs in of_ranks:
        agreed = ["communication", "compute"]
        assert entered == [*gathered, "generation", "reward", *agreed, "communication", "compute"]
        names = {
            "prefill_s",
            "decode_s",
            "drawn_tokens_per_s",
            "slot_occupancy",
            "tile_rows",
            "forward_s",
            "backward_s",
        }
        assert set(costs) == names and all(value > 0 for value in costs.values())
        assert costs["slot_occupancy"] <= 1


def accused(ranks: Ranks, base: Path) -> tuple[list[str], dict[str, float]]:
    """The phases of a step that is not checked, and what it cost."""
    method = GrpoMethod(grpo_config(base))
    model = initial_model(method, seed=SEED, device=ranks.device)
    forward = LaneForward(
        method, device=ranks.device, precision="float32", seed=SEED, updates_per_step=method.updates_per_rollout
    )
    is_sharded = ranks.inner is not None
    lane_sum = lane_sum_of(model, ranks, LANES, gathers=True)
    source = source_of(method, forward, lane_sum, ranks, SEED)
    optimizer = build_optimizer(model, CONFIG)
    stepper = Stepper(source, forward, lane_sum, optimizer, ranks, config=CONFIG, num_steps=1)
    lanes = LaneShares(LANES, ranks.world_size, interleaved=is_sharded).of_rank(ranks.rank)
    share = StepShare(Cursor(), tuple(prompt_lane(lane, [2 * lane, 2 * lane + 1]) for lane in lanes))
    entered: list[str] = []
    lane_sum.enter_phase = entered.append
    return entered, dict(stepper.step(share, step=1, stop_requested=False).costs)


@pytest.mark.slow
@any_parallel
def test_what_is_said_ahead_is_the_same_on_ranks_and_behind_a_commit(
    shards_weights: bool, base: Path, tmp_path: Path
) -> None:
    keys = {"staleness": 2, "updates_per_rollout": 2, "num_steps": 5}
    [alone] = on_ranks(1, lambda ranks: steps_on(ranks, base, **keys), tmp_path / "1")
    of_ranks = on_ranks(
        2,
        lambda ranks: steps_on(ranks, base, resumes_before=3, **keys),
        tmp_path / "2",
        shards_weights=shards_weights,
    )
    assert of_ranks == [alone] * 2
    [at_once] = on_ranks(1, lambda ranks: steps_on(ranks, base, **keys | {"staleness": 0}), tmp_path / "0")
    upcoming, fresh = ([step[5]["rollout_digest"] for step in steps] for steps, _ in (alone, at_once))
    assert upcoming[0] == fresh[0] and not set(upcoming[1:]) & set(fresh[1:]), "by the weights of before"


@any_parallel
def test_a_rank_that_said_another_token_ahead_is_named_at_once(
    shards_weights: bool, base: Path, tmp_path: Path
) -> None:
    of_ranks = on_ranks(
        2,
        lambda ranks: steps_on(ranks, base, wrong_rank=1, staleness=1),
        tmp_path,
        shards_weights=shards_weights,
    )
    [(rank, _, is_certain)] = of_ranks[0]
    assert (rank, is_certain) == (1, True) and of_ranks[0] == of_ranks[1]
