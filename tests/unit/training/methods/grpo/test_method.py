"""From prompts to a loss: who is sampled together, what is learned of it, and that no cut of it moves the
loss."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from agreement.measured import Measured, apart, measured
from agreement.rollout_cases import COMPLETED, logprobs_of
from agreement.tiny_models import END, save_tiny
from assay.base.seeds import derive_key
from assay.data.loader.batch import LaneShare
from assay.inference.local.generator import BatchInvariance, Generator
from assay.inference.protocol import SamplingParams
from assay.inference.rollout import Prompt, Rollout
from assay.scoring.grade import Grade, ItemFailure
from assay.training.methods.grpo.batch import RolloutGroup, rewards_of
from assay.training.methods.grpo.config import GrpoConfig
from assay.training.methods.grpo.method import GrpoMethod
from assay.training.methods.grpo.rollouts import (
    OUTCOMES,
    moments,
    outcomes,
    rollout_metrics,
    scaled_lane,
    training_lane,
    with_grades,
)
from assay.training.numerics import means_of
from assay.training.rollouts.source import RolloutContext
from prompt_rows import grpo_config, prompt_lane

CPU = torch.device("cpu")
LOSSES = ("dapo", "grpo", "dr_grpo", "bnpo", "gspo", "cispo")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(LlamaForCausalLM, tmp_path_factory.mktemp("base") / "model", seed=1)


def rolled_out(method: GrpoMethod, model: nn.Module, *lanes: LaneShare, seed: int = 0, max_tokens: int | None = None):
    with torch.no_grad():
        return method.rollouts(model, lanes, {}, RolloutContext(1, seed), max_tokens=max_tokens)


def tokens_of(lane: LaneShare) -> list[Any]:
    return [
        (b.row_ids.tolist(), b.tokens.values.tolist(), b.columns["advantage"].to_pylist()) for b in lane.micro_batches
    ]


def test_a_lane_is_the_same_alone_and_beside_others(base: Path) -> None:
    method = GrpoMethod(grpo_config(base))
    model, lanes = (
        method.build_model(),
        [prompt_lane(number, [3 * number, 3 * number + 1]) for number in range(5)],
    )
    together = rolled_out(method, model, *lanes)
    assert len({item.digest for item in together}) == 5
    for lane, alongside in zip(lanes, together, strict=True):
        [alone] = rolled_out(GrpoMethod(method.config), model, lane)
        assert alone.digest == alongside.digest and tokens_of(alone.lane) == tokens_of(alongside.lane)
    [other] = rolled_out(method, model, lanes[0], seed=1)
    assert other.digest != together[0].digest


def test_a_bit_of_a_token_of_a_log_probability_or_of_a_reward_is_another_digest(base: Path) -> None:
    method = GrpoMethod(grpo_config(base))
    [right] = rolled_out(method, method.build_model(), prompt_lane(0, [1]))
    generate = method._generate

    def spoiled(change: str):
        def completed(*arguments: Any) -> list[Rollout]:
            first, *rest = generate(*arguments)
            tokens, message = first.tokens.copy(), first.logprobs.copy()
            if change == "token":
                tokens[0] ^= 1
            else:
                message.view(np.uint32)[0] ^= 1
            return [first._replace(tokens=tokens, logprobs=message), *rest]

        return completed

    for change in ("token", "logprob"):
        method._generate = spoiled(change)  # type: ignore[method-assign]
        [wrong] = rolled_out(method, method.build_model(), prompt_lane(0, [1]))
        assert wrong.digest != right.digest, change


def test_answers_are_paid_by_the_grader_and_compared_within_their_group(base: Path) -> None:
    method = GrpoMethod(grpo_config(base, advantage_scale="none"))
    [result] = rolled_out(method, method.build_model(), prompt_lane(0, [0, 4, 7]))
    (batch,) = result.lane.micro_batches
    words = [
        [f"t{token}" for token in line[2:length]]
        for line, length in zip(batch.tokens.values, batch.tokens.lengths, strict=True)
    ]
    rewards = np.array(
        [
            float(any(f"t{row % 3 + 1}" in word for word in message))
            for row, message in zip(batch.row_ids.tolist(), words, strict=True)
        ]
    ).reshape(3, 4)
    expected = rewards - rewards.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(batch.columns["advantage"].to_numpy(), expected.ravel(), atol=1e-6)
    assert float(result.metrics["reward"].sum) == rewards.sum() and result.metrics["reward"].weight == 12


def test_the_sampler_and_the_trainer_say_the_same_of_a_token(base: Path) -> None:
    for keys in ({}, {"sampling": {"max_tokens": 6, "temperature": 0.7}}):
        method = GrpoMethod(grpo_config(base, **keys))
        model = method.build_model()
        [result] = rolled_out(method, model, prompt_lane(0, list(range(6))))
        (batch,) = result.lane.micro_batches
        gap = method.loss(model, method.tensors(batch, CPU), {}).metrics["logprob_gap"]
        assert 0 <= float(gap.sum / gap.weight) <= 2e-6


def grades_of(rewards: list[float]) -> list[Grade]:
    failed = Grade(None, ItemFailure("python_timeout", "late"))
    return [failed if math.isnan(reward) else Grade(float(reward)) for reward in rewards]


def completions(lengths: list[list[int]], rewards: list[list[float]], config: GrpoConfig) -> list[RolloutGroup]:
    """Groups of answers of these lengths; one of 6 tokens was cut."""
    groups = []
    for number, (of_group, earned) in enumerate(zip(lengths, rewards, strict=True)):
        rollouts = [
            Rollout(np.arange(2, 2 + length), np.full(length, -1.0, np.float32), "length" if length == 6 else "stop")
            for length in of_group
        ]
        groups.append(with_grades(RolloutGroup(number, np.array([3, 4]), {}, rollouts), grades_of(earned), config))
    return groups


def trained(groups: list[RolloutGroup], config: GrpoConfig) -> list[tuple[int, int]]:
    """Row and answer's length of all that is learned."""
    batches = training_lane(0, groups, config, None).micro_batches
    pairs = (zip(batch.row_ids, batch.tokens.lengths, strict=True) for batch in batches)
    return [(int(row), int(length) - 2) for of_batch in pairs for row, length in of_batch]


def test_what_was_cut_counts_in_its_group_and_is_learned_or_not(base: Path) -> None:
    lengths, rewards = [[2, 6, 3]], [[1.0, 0.0, 0.0]]
    keep, mask = grpo_config(base), grpo_config(base, overlong={"type": "mask"})
    assert trained(completions(lengths, rewards, keep), keep) == [(0, 2), (0, 6), (0, 3)]
    assert trained(completions(lengths, rewards, mask), mask) == [(0, 2), (0, 3)]
    shape = grpo_config(base, overlong={"buffer_tokens": 4, "penalty": 1.0}, advantage_scale="none")
    [group] = completions(lengths, rewards, shape)
    np.testing.assert_allclose(group.advantages, np.array([1.0, -1.0, -0.25]) + 0.25 / 3, atol=1e-6)
    assert rewards_of(group.grades).tolist() == [1.0, 0.0, 0.0], "what graders paid stays on record"


def test_the_first_groups_with_spread_are_learned_and_all_are_counted(base: Path) -> None:
    config = grpo_config(base, groups_per_lane=2)
    groups = completions([[1, 2]] * 5, [[1, 1], [0, 1], [0, 0], [1, 0], [0, 1]], config)
    assert {row for row, _ in trained(groups, config)} == {1, 3}
    counted = {name: (float(metric.sum), metric.weight) for name, metric in rollout_metrics(groups).items()}
    assert counted["zero_std"] == (2, 5) and counted["length"] == (15, 10) and counted["distinct"] == (10, 10)
    assert counted["truncated"] == (0, 10) and counted["reward_std"] == (1.5, 5)


def test_a_failed_grade_is_not_learned_and_a_lane_may_have_nothing_to_learn(base: Path) -> None:
    config = grpo_config(base)
    assert trained(completions([[1, 2, 3]], [[1.0, math.nan, 0.0]], config), config) == [(0, 1), (0, 3)]
    assert training_lane(0, completions([[1, 2]], [[math.nan] * 2], config), config, None) == LaneShare(0, ())


def normalize_advantages(method: GrpoMethod, result: Any) -> Any:
    """By a step that has no other lanes."""
    if not (names := method.step_statistics):
        return result
    lines = [
        [samples.lane.lane, *(float(part) for name in names for part in samples.metrics[name])] for samples in result
    ]
    means = means_of(names, lines)
    return [samples._replace(lane=method.normalize_advantages(samples.lane, means)) for samples in result]


def advantages_of(result: Any) -> np.ndarray:
    batches = [batch for item in result for batch in item.lane.micro_batches]
    return np.concatenate([batch.columns["advantage"].to_numpy() for batch in batches])


def test_advantages_by_the_step_are_over_the_deviation_of_all_that_it_paid(base: Path) -> None:
    result = {}
    for scale in ("none", "step"):
        method = GrpoMethod(grpo_config(base, advantage_scale=scale))
        lanes = [prompt_lane(number, [3 * number, 3 * number + 1]) for number in range(5)]
        raw = rolled_out(method, method.build_model(), *lanes)
        result[scale] = advantages_of(normalize_advantages(method, raw))
    num_rewarded = sum(int(item.metrics["reward"].weight) for item in raw)
    share = sum(float(item.metrics["reward"].sum) for item in raw) / num_rewarded
    deviation = math.sqrt(share * (1 - share))  # of rewards that are 0 or 1
    assert 0 < share < 1 and result["none"].any()
    np.testing.assert_allclose(result["step"], result["none"] / deviation, rtol=1e-6)


def test_where_a_step_paid_everybody_the_same_nothing_is_learned(base: Path) -> None:
    config = grpo_config(base, advantage_scale="step")
    groups = completions([[1, 2], [3, 3]], [[0.1, 0.1], [0.1, math.nan]], config)
    sums = moments(groups)
    totals = {name: float(item.sum) / item.weight for name, item in sums.items()}
    [batch] = scaled_lane(training_lane(0, groups, config, None), totals).micro_batches
    assert batch.columns["advantage"].to_pylist() == [0.0, 0.0, 0.0]
    assert float(sums["shaped_reward"].sum) == pytest.approx(0.3) and sums["shaped_reward"].weight == 3, (
        "what has no grade is not counted"
    )


def found(method: GrpoMethod, model: nn.Module, frozen_models: Any, batches: Any) -> Measured:
    """The mean loss over all of the batches, as a step would have it."""
    total = sum(method.loss(model, method.tensors(batch, CPU), frozen_models).sum for batch in batches)
    return measured(model, total / sum(map(method.weight, batches)))


@pytest.mark.parametrize("loss", LOSSES)
def test_neither_the_budget_nor_the_order_moves_loss_and_gradient(loss: str, base: Path) -> None:
    method = GrpoMethod(grpo_config(base, loss={"type": loss}, kl=0.1))
    model = method.build_model()
    frozen_models = {
        name: build_frozen_model.eval() for name, build_frozen_model in method.build_frozen_models().items()
    }
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.01 * torch.ones_like(weight)
    groups = completions([[1, 6, 2], [4, 3, 3]], [[1.0, 0.0, 0.5], [0.0, 2.0, 1.0]], method.config)
    whole = found(method, model, frozen_models, training_lane(0, groups, method.config, None).micro_batches)
    for budget in (1, 12, 30):
        cut = training_lane(0, groups[::-1], method.config, budget).micro_batches
        assert len(cut) > 1
        assert apart(found(method, model, frozen_models, cut), whole).agree


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=12), st.integers(1, 40))
def test_micro_batches_hold_every_answer_once_within_the_budget(base: Path, lengths: list[int], budget: int) -> None:
    config = grpo_config(base)
    groups = completions([lengths], [[float(index) for index in range(len(lengths))]], config)
    batches = training_lane(0, groups, config, budget).micro_batches
    assert sorted(int(length) - 2 for batch in batches for length in batch.tokens.lengths) == sorted(lengths)
    for batch in batches:
        assert batch.tokens.values.size <= budget or len(batch.row_ids) == 1


def readable(loss: str, config: GrpoConfig, policy: Any, reference: Any) -> torch.Tensor:
    """On answers of the policy itself, in 64 bits, one at a time."""
    total, weight = torch.zeros((), dtype=torch.float64), 0
    for item in COMPLETED:
        mean = sum(item.rewards) / len(item.rewards)
        deviation = math.sqrt(sum((reward - mean) ** 2 for reward in item.rewards) / len(item.rewards)) or 1.0
        for completion, reward in zip(item.completions, item.rewards, strict=True):
            ids, advantage = torch.tensor([item.prompt + completion]), (reward - mean) / deviation
            own = policy(input_ids=ids).logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[0, :, 0]
            own, message = own[len(item.prompt) - 1 :], logprobs_of(reference, ids)[0, len(item.prompt) - 1 :]
            ratios, d = (own - own.detach()).exp(), message - own
            of_tokens = -ratios * advantage + config.kl * ratios * (d.exp() - d - 1)
            if loss == "cispo":
                of_tokens = -advantage * own + config.kl * ratios * (d.exp() - d - 1)
            if loss in ("dapo", "bnpo", "cispo"):
                total, weight = total + of_tokens.sum(), weight + len(completion)
            elif loss == "dr_grpo":
                total, weight = total + of_tokens.sum() / config.sampling.max_tokens, weight + 1
            else:
                total, weight = total + of_tokens.mean(), weight + 1
    return total / weight


@pytest.mark.parametrize("loss", LOSSES)
def test_it_is_what_a_readable_version_in_64_bits_computes(loss: str, base: Path, tmp_path: Path) -> None:
    other = save_tiny(LlamaForCausalLM, tmp_path / "other", seed=2)
    config = grpo_config(base, loss={"type": loss}, kl=0.1, reference={"path": str(other)}, group_size=3)
    method = GrpoMethod(config)
    groups = [
        with_grades(
            RolloutGroup(
                number,
                np.array(item.prompt),
                {},
                [
                    Rollout(np.array(completion), np.zeros(len(completion), np.float32), "stop")
                    for completion in item.completions
                ],
            ),
            grades_of(list(item.rewards)),
            config,
        )
        for number, item in enumerate(COMPLETED)
    ]
    (batch,) = training_lane(0, groups, config, None).micro_batches
    model, frozen_models = method.build_model(), {n: h.eval() for n, h in method.build_frozen_models().items()}
    own = measured(
        model,
        method.loss(model, method.tensors(batch, CPU), frozen_models).sum / method.weight(batch),
        network="",
    )
    policy, reference = (LlamaForCausalLM.from_pretrained(item).double().eval() for item in (base, other))
    assert apart(own, measured(policy, readable(loss, config, policy, reference))).agree


def test_every_metric_comes_with_the_rollouts_or_with_the_loss(base: Path) -> None:
    method = GrpoMethod(grpo_config(base, kl=0.1))
    model, frozen_models = method.build_model(), {n: h.eval() for n, h in method.build_frozen_models().items()}
    [result] = rolled_out(method, model, prompt_lane(0, [1, 2]))
    (batch,) = result.lane.micro_batches
    of_loss = method.loss(model, method.tensors(batch, CPU), frozen_models).metrics
    assert set(result.metrics) | set(of_loss) == set(method.metrics) and not set(result.metrics) & set(of_loss)
    assert float(of_loss["kl"].sum) == 0.0, "before the first update the policy is its reference"
    assert set(method.loss(model, method.blank(CPU), frozen_models).metrics) == set(of_loss)


def test_held_out_prompts_are_drawn_like_those_that_are_learned_from_with_the_same_luck_each_time(
    base: Path,
) -> None:
    """So what they earn and what training earns is of one policy, and two evaluations differ by the model."""
    method = GrpoMethod(grpo_config(base, sampling={"max_tokens": 6, "temperature": 0.7}))
    model = method.build_model()
    (batch,) = prompt_lane(0, [*range(24)]).micro_batches
    tensors = method.tensors(batch, CPU)
    rows, tokens = batch.row_ids.tolist(), batch.tokens.values
    prompts = [Prompt(tokens[index], derive_key("validation", row)) for index, row in enumerate(rows)]

    def lengths(temperature: float) -> list[int]:
        network = LlamaForCausalLM.from_pretrained(base).eval()
        sampling = SamplingParams(temperature=temperature, max_tokens=6)
        drawn = Generator(network, ends=[END]).generate(prompts, sampling)
        return [len(item.tokens) for item in drawn]

    message = [method.predictions(model, tensors)["length"].tolist() for _ in range(2)]
    assert message[0] == message[1] == lengths(0.7)
    assert message[0] != lengths(1.0) and message[0] != lengths(0.0)


def test_held_out_prompts_are_answered_greedily_where_the_recipe_says_so_and_graded(base: Path) -> None:
    method = GrpoMethod(grpo_config(base, validation_temperature=0.0))
    model = method.build_model()
    (batch,) = prompt_lane(0, [0, 1, 2]).micro_batches
    message = method.predictions(model, method.tensors(batch, CPU))
    assert set(message) == {metric.name for metric in method.config.predictions.metrics}
    network = LlamaForCausalLM.from_pretrained(base).eval()
    for row in range(3):
        ids = batch.tokens.values[row].tolist()
        with torch.no_grad():
            while len(ids) < 8 and END not in ids[2:]:
                ids.append(int(network(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        words = [f"t{token}" for token in ids[2:] if token != END]
        assert float(message["reward"][row]) == float(any(f"t{row % 3 + 1}" in word for word in words))
        assert float(message["truncated"][row]) == float(END not in ids[2:])
    assert method.predictions(model, method.blank(CPU)) == {}


def test_a_step_whose_answers_nobody_could_grade_is_refused(base: Path) -> None:
    method = GrpoMethod(grpo_config(base, max_reward_failures=0.25))
    method.check_step({"failed_grades": 0.25}, step=3)
    with pytest.raises(Exception, match="max_reward_failures"):
        method.check_step({"failed_grades": 0.26}, step=3)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"group_size": 1}, "greater than or equal to 2"),
        ({"reference": {"path": "somewhere"}}, "unused while method.kl is 0"),
        ({"overlong": {"buffer_tokens": 7}}, "buffer_tokens=7 is more than"),
        ({"rewards": []}, "at least 1"),
        ({"model": {"type": "new", "vocab_size": 32}}, "pretrained"),
    ],
)
def test_what_cannot_mean_anything_is_refused(keys: dict[str, Any], message: str, base: Path) -> None:
    with pytest.raises(ValueError, match=message):
        grpo_config(base, **keys)


def test_later_updates_are_held_against_what_the_first_one_found(base: Path) -> None:
    method = GrpoMethod(grpo_config(base, updates_per_rollout=2))
    model = method.build_model()
    groups = completions([[2, 4, 3]], [[1.0, 0.0, 0.5]], method.config)
    (batch,) = training_lane(0, groups, method.config, None).micro_batches
    tensors = method.tensors(batch, CPU)
    first = method.loss(model, tensors, {})
    again = method.loss(model, {**tensors, **first.carried}, {})
    assert again.sum.item() == first.sum.item() and float(again.metrics["clipped"].sum) == 0, "a ratio of exactly 1"
    with torch.no_grad():
        for weight in model.parameters():
            weight *= 1.5
    moved = method.loss(model, {**tensors, **first.carried}, {})
    assert moved.sum.item() != first.sum.item() and float(moved.metrics["clipped"].sum) > 0
    assert torch.equal(moved.carried["old_logprobs"], first.carried["old_logprobs"])


@pytest.mark.parametrize("batch_invariance", BatchInvariance)
def test_an_answer_made_alone_is_that_of_its_lane(
    batch_invariance: BatchInvariance, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Generator, "batch_invariance", batch_invariance)
    method = GrpoMethod(grpo_config(base, groups_per_lane=1, overlong={"type": "mask"}))
    model, lane = method.build_model(), prompt_lane(0, [1, 2, 3])
    result = {
        (row, sample): method.rollout(model, lane, {}, RolloutContext(1, 3), row_id=row, sample=sample)
        for row in (1, 2, 3)
        for sample in range(4)
    }
    assert all(item.digest == item.batched_digest for item in result.values())
    assert len({item.digest for item in result.values()}) == 12
    [consumed] = rolled_out(method, model, lane, seed=3)
    trained_rows = [row for batch in consumed.lane.micro_batches for row in batch.row_ids.tolist()]
    assert sorted(trained_rows) == sorted(row for (row, _), item in result.items() if item.outcome == "trained")


def test_what_became_of_an_answer_has_one_of_five_names(base: Path) -> None:
    config = grpo_config(base, groups_per_lane=1, overlong={"type": "mask"})
    groups = completions([[1, 2, 3], [6, 2, 2], [1, 1, 1]], [[1, 1, 1], [0, 1, math.nan], [0, 1, 0]], config)
    assert outcomes(groups, config) == [
        ["zero_std"] * 3, ["overlong", "trained", "failed"], ["surplus"] * 3,
    ]  # fmt: skip
    assert {item for of_group in outcomes(groups, config) for item in of_group} == set(OUTCOMES)
