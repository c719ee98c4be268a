"""Rewards: what is paid, what is not and why, and what is refused before anything begins."""

import json
import math
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pydantic import TypeAdapter

from assay.base.errors import ConfigError, DataError, TrainingError
from assay.data.dataset.columns import ITEM, TOKENS
from assay.data.loader.batch import MicroBatch, Ragged
from assay.inference.rollout import Rollout
from assay.models.causal_config import NewCausalConfig
from assay.models.reward_network import RewardNetwork
from assay.records.dataset import DatasetManifest
from assay.training.methods.grpo.batch import RolloutGroup, items_of
from assay.training.methods.grpo.reward_config import (
    AnyReward,
    JudgeEndpoint,
    check_rewards,
    judge_tools,
    reward_range,
    runs_of,
)
from assay.training.methods.grpo.rewards import (
    FAILURE_KINDS,
    Rewards,
    check_failure_rate,
)

EXACT = {
    "type": "string_check", "name": "exact", "operation": "eq",
    "input": "{{ sample.output_text }}", "reference": "{{ item.answer }}",
}  # fmt: skip
_REWARDS: TypeAdapter[Any] = TypeAdapter(tuple[AnyReward, ...])


def rewards_of(*trees: dict[str, Any]) -> Any:
    return _REWARDS.validate_python(trees)


def python(body: str, name: str = "own") -> dict[str, Any]:
    return {"grader": {"type": "python", "name": name, "source": f"def grade(sample, item):\n    {body}"}}


def manifest(**fields: int) -> DatasetManifest:
    return DatasetManifest.model_construct(name="asked", num_rows=10, item_fields=fields)  # type: ignore[call-arg]


def graded(config: Any, completions: list[str], items: list[dict[str, Any]]) -> tuple[Rewards, list[Any]]:
    rewards = Rewards(config, group_size=2)
    with closing(rewards):
        return rewards, rewards.grade(groups_of([np.zeros(1, np.int64)] * len(items), 1, items), completions, {})


def groups_of(sequences: list[np.ndarray], size: int, items: list[dict[str, Any]] | None = None) -> list[RolloutGroup]:
    """Groups of so many of the sequences, without prompts."""
    rollouts = [Rollout(sequence, np.zeros(len(sequence), np.float32), "stop") for sequence in sequences]
    return [
        RolloutGroup(at, np.zeros(0, np.int64), items[at] if items else {}, rollouts[at : at + size])
        for at in range(0, len(rollouts), size)
    ]


def test_an_answer_is_paid_the_weighted_sum_of_its_scores():
    config = rewards_of({"grader": EXACT, "weight": 2.0}, python("return len(sample['output_text']) / 10"))
    rewards, (right, wrong) = graded(config, ["1 2", "2 1 0"], [{"answer": "1 2"}] * 2)
    assert (right.score, wrong.score) == (2.3, 0.5) and [*right.parts.values()] == [1.0, 0.3]
    sums = rewards.sums([right, wrong])
    assert set(sums) == set(rewards.metrics)
    means = {name: float(item.sum) / item.weight for name, item in sums.items() if item.weight}
    assert means["reward"] == pytest.approx(1.4)
    assert means["reward_exact"] == 0.5 and means["failed_grades"] == 0.0


def test_what_an_answer_can_earn_is_known_of_graders_and_not_of_what_a_user_wrote():
    judge = {
        "type": "score_model", "name": "judge", "model": "m", "range": [-2, 4],
        "input": [{"role": "user", "content": "?"}],
    }  # fmt: skip
    alike = {**EXACT, "type": "text_similarity", "name": "alike", "evaluation_metric": "fuzzy_match"}
    del alike["operation"]
    exact = {"grader": EXACT, "weight": 2.0}
    assert reward_range(rewards_of(exact)) == (0.0, 2.0)
    fines = {"grader": alike, "weight": -0.5}
    assert reward_range(rewards_of(exact, fines, {"grader": judge})) == (-2.5, 6.0)
    anything = (-math.inf, math.inf)
    assert reward_range(rewards_of(exact, python("return 7"))) == anything
    assert reward_range(rewards_of(exact, {"type": "run", "run": "judge", "weight": -1.0})) == anything
    assert reward_range(rewards_of(exact, {**python("return 7"), "weight": 0.0})) == (0.0, 2.0)
    several = {"type": "multi", "name": "both", "graders": {"e": EXACT}, "calculate_output": "3 * e"}
    assert reward_range(rewards_of({"grader": several})) == anything
    cosine = {**alike, "evaluation_metric": "cosine"}
    assert reward_range(rewards_of({"grader": cosine})) == (-1.0, 1.0)


def test_a_failed_grade_is_no_reward_of_zero_and_is_counted_by_its_kind():
    config = rewards_of({"grader": EXACT}, python("return 1 / (len(sample['output_text']) - 3)"))
    rewards, found = graded(config, ["1 2", "1"], [{"answer": "1 2"}, {"answer": "1"}])
    assert found[0].score is None and found[0].failure.kind == "python_grader_runtime_error"
    assert found[1].score == 0.5
    sums = rewards.sums(found)
    assert (float(sums["reward"].sum), sums["reward"].weight) == (0.5, 1.0), "of those that were paid"
    assert float(sums["failed_grades"].sum) / sums["failed_grades"].weight == 0.5
    assert float(sums["failed_grades_python_grader_runtime_error"].sum) == 1.0
    with pytest.raises(
        TrainingError,
        match=r"step 7: 50.0% .*50.0% python_grader_runtime_error; e.g. .*ZeroDivisionError.* Fix",
    ):
        means = {name: float(item.sum) / item.weight for name, item in sums.items()}
        check_failure_rate(means, 0.4, step=7, example=rewards.last_failure)
    check_failure_rate({"failed_grades": 0.4}, 0.4, step=7)


def test_where_a_judge_is_silent_the_error_says_how_to_go_on_once_it_answers():
    silent = {"failed_grades": 0.5, "failed_grades_model_grader_server_error": 0.5}
    with pytest.raises(TrainingError, match="judge responds again, continue with assay train --resume"):
        check_failure_rate(silent, 0.4, step=7)


def test_where_graders_were_killed_the_error_says_that_a_resume_goes_on():
    killed = {"failed_grades": 0.5, "failed_grades_python_grader_killed": 0.5}
    with pytest.raises(TrainingError, match=r"50.0% python_grader_killed.*continue with assay train --res"):
        check_failure_rate(killed, 0.4, step=7)


def test_a_grader_asked_again_in_another_process_says_the_same():
    body = "import random; return hash(item['word']) % 9973 + random.random() + len(str({'a', item['word']}))"
    config, items = rewards_of(python(body)), [{"word": f"word{index}"} for index in range(4)]
    (_, once), (_, again) = (graded(config, ["x"] * 4, items) for _ in range(2))
    _, backwards = graded(config, ["x"] * 4, items[::-1])
    assert [item.score for item in once] == [item.score for item in again]
    assert [item.score for item in once] == [backward.score for backward in backwards][::-1]


def network(seed: int) -> RewardNetwork:
    torch.manual_seed(seed)
    config = NewCausalConfig(vocab_size=20, hidden_size=32, intermediate_size=64, max_tokens=32)
    return RewardNetwork(config).eval()


def test_what_a_reward_model_pays_a_group_does_not_depend_on_the_other_groups():
    config = rewards_of({"run": "judge", "weight": 3.0})
    rewards, model = Rewards(config, group_size=2), network(0)
    rng = np.random.default_rng(0)
    sequences = [rng.integers(1, 20, length) for length in (5, 9, 30, 2, 7, 7)]
    together = rewards.grade(groups_of(sequences, 2), [""] * 6, {"method.rewards[0]": model})
    apart = [
        item
        for start in (4, 2, 0)
        for item in rewards.grade(groups_of(sequences[start : start + 2], 2), [""] * 2, {"method.rewards[0]": model})
    ]
    assert [item.score for item in together] == [item.score for item in (*apart[4:], *apart[2:4], *apart[:2])]
    alone = model(torch.from_numpy(sequences[2])[None], torch.tensor([30])).item()
    assert together[2].score == pytest.approx(3.0 * alone, abs=1e-5)
    assert len({item.score for item in together}) == 6


def test_a_reward_model_that_says_no_number_has_failed():
    model = network(0)
    with torch.no_grad():
        model.head.weight.fill_(math.inf)
    rewards = Rewards(rewards_of({"run": "judge"}), group_size=1)
    (found,) = rewards.grade(groups_of([np.array([1, 2])], 1), [""], {"method.rewards[0]": model})
    assert found.score is None and found.failure is not None and found.failure.kind in FAILURE_KINDS


def test_the_items_of_a_micro_batch_are_parsed_and_named_where_they_are_none():
    def batch(*texts: str) -> MicroBatch:
        ids = Ragged(np.ones((len(texts), 1), np.int64), np.ones(len(texts), np.int32))
        rows = np.arange(7, 7 + len(texts), dtype=np.uint64)
        return MicroBatch(row_ids=rows, ragged={TOKENS: ids}, columns={ITEM: pa.array(texts)})

    assert items_of(batch(json.dumps({"answer": [1]}))) == [{"answer": [1]}]
    with pytest.raises(DataError, match="row 8: 'item' is no JSON object: '3'"):
        items_of(batch("{}", "3"))


FORMULA = {
    "type": "multi",
    "graders": {"a": {**EXACT, "input": "{{ item['b c'] }}"}},
    "calculate_output": "a",
}

REFUSED: dict[str, tuple[tuple[dict[str, Any], ...], str]] = {
    "a template's field that no item has": (
        ({"grader": {**EXACT, "reference": "{{ item.solution }}"}},),
        r"method.rewards\[0\]: grader 'exact' reads item.solution, but 10 of 10 items of dataset 'asked' lack "
        "it. Fields that are there: answer, level",
    ),
    "one that some lack": (({"grader": {**EXACT, "reference": "{{ item.level }}"}},), "but 6 of 10 items"),
    "one within a formula": (
        ({"grader": FORMULA},),
        "reads item.b c, but",
    ),
    "a template's field that no sample has": (
        ({"grader": {**EXACT, "input": "{{ sample.output_txt }}"}},),
        r"method.rewards\[0\]: grader 'exact' reads sample.output_txt, which no sample has. Read one of",
    ),
    "one that a source subscripts in a sample": (
        (python("return float(sample['output_txt'] == '')"),),
        r"method.rewards\[0\]: grader 'own' reads sample.output_txt",
    ),
    "one that a source subscripts": ((python("return item['gold'] == 1"),), "grader 'own' reads item.gold"),
    "two of one name": (({"grader": EXACT}, {"grader": EXACT}), "two rewards are named 'exact'"),
    "a run that is not there": (({"run": "nobody"},), r"method.rewards\[0\].run=nobody: no such run"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rewards_that_cannot_be_paid_are_refused(name: str, tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path))
    trees, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        check_rewards(rewards_of(*trees), manifest(answer=10, level=4), key="method.rewards", longest=9, vocab_size=20)


def test_rewards_that_read_what_is_there_or_ask_first_are_fine():
    config = rewards_of({"grader": EXACT}, python("return item['gold'] if 'gold' in item else 0.0"))
    check_rewards(config, manifest(answer=10), key="method.rewards", longest=9, vocab_size=None)
    older = DatasetManifest.model_construct(name="asked", num_rows=10, item_fields=None)  # type: ignore[call-arg]
    check_rewards(config, older, key="method.rewards", longest=9, vocab_size=None)


@pytest.mark.parametrize(
    "grader",
    [
        {
            "type": "score_model",
            "name": "j",
            "model": "gpt",
            "input": [{"role": "user", "content": "{{ item.a }}"}],
        },
        {"type": "text_similarity", "name": "j", "input": "a", "reference": "b", "evaluation_metric": "cosine"},
    ],
)
def test_a_judge_pays_where_somebody_says_where_it_answers(grader: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ASSAY_JUDGE_URL", raising=False)
    config = rewards_of({"grader": grader})
    with pytest.raises(ConfigError, match=r"grader 'j' calls an endpoint, and none is.*method\.judge\.url"):
        judge_tools(JudgeEndpoint(), config)
    monkeypatch.setenv("ASSAY_JUDGE_URL", "http://localhost:1/v1")
    assert judge_tools(JudgeEndpoint(), config).embedder is not None


def test_the_commits_that_rewards_ask_are_named_by_key():
    named = runs_of(rewards=rewards_of({"grader": EXACT}, {"run": "judge", "step": 4}), held_out=())
    assert {key: str(name) for key, name in named.items()} == {"method.rewards[1]": "judge@4"}
