"""The configuration of rewards: graders (the same objects as in benchmarks), and commits of reward-model runs.

    rewards: [{grader: {type: string_check, ...}}, {run: docstring-reward-1122, step: 400, weight: 0.5}]

A completion's reward is the weighted sum of scores. A reward must be a function of prompt and completion, because a
step that is run again must get the same rewards. External judges need not be deterministic: their grades are stored.
Imports no torch.
"""

import math
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, TypeAdapter

from assay.base.config import FrozenConfig, first_repeated
from assay.base.errors import ConfigError
from assay.inference.endpoint import HttpEngine
from assay.models.causal_config import CausalConfig, NewCausalConfig, PretrainedCausalConfig, check_scorer
from assay.records.dataset import DatasetManifest
from assay.records.run import Run
from assay.scoring.grader_runner import Tools
from assay.scoring.graders import (
    Grader,
    LabelModel,
    ScoreModel,
    TextSimilarity,
    check_item_fields,
    check_sample_fields,
    has_own_process,
    score_range,
    single_graders,
)
from assay.training.checkpoint.named_commit import CommitName

_MODEL: TypeAdapter[NewCausalConfig | PretrainedCausalConfig] = TypeAdapter(CausalConfig)


class GraderReward(FrozenConfig):
    """The score of a grader."""

    type: Literal["grader"] = "grader"

    grader: Grader
    """As in docs/suites.md."""

    weight: float = 1.0
    """Factor of the score."""

    @property
    def name(self) -> str:
        return self.grader.name


class JudgeEndpoint(FrozenConfig):
    """The endpoint of judges (`score_model`, `label_model`, `text_similarity` by cosine)."""

    url: str | None = None
    """An OpenAI-compatible endpoint, e.g. http://localhost:8000/v1; null: $ASSAY_JUDGE_URL. The key is
    $OPENAI_API_KEY."""

    embeddings: str = "embeddings"
    """Its embedding model."""

    concurrency: PositiveInt = 16
    """In flight per rank."""

    timeout_s: PositiveFloat = 60.0
    """Limit of one response."""

    def address(self) -> str | None:
        """Return the current URL of the judges."""
        return self.url or os.environ.get("ASSAY_JUDGE_URL")


class RunReward(FrozenConfig):
    """The reward of a run of method `reward`."""

    type: Literal["run"]

    run: str
    """Its dataset must have the tokenizer of the prompts."""

    step: PositiveInt | None = None
    """Null: the last commit of a finished run."""

    weight: float = 1.0
    """Factor of the reward."""

    @property
    def name(self) -> str:
        return self.run


def _with_type(tree: Any) -> Any:
    """Fill in the type: a grader, or a run."""
    if isinstance(tree, Mapping) and "type" not in tree:
        return {"type": "run" if "run" in tree else "grader", **tree}
    return tree


AnyReward = Annotated[GraderReward | RunReward, Field(discriminator="type"), BeforeValidator(_with_type)]


def uses_judge(reward: GraderReward | RunReward) -> bool:
    """Return whether the reward calls an external judge."""
    return isinstance(reward, GraderReward) and any(
        isinstance(single, ScoreModel | LabelModel)
        or (isinstance(single, TextSimilarity) and single.evaluation_metric == "cosine")
        for single in single_graders(reward.grader)
    )


def judge_concurrency(reward: GraderReward, endpoint: JudgeEndpoint, group_size: int) -> int:
    """Return how many groups may be graded concurrently; a grader with its own process takes one at a time."""
    return 1 if has_own_process(reward.grader) else max(1, endpoint.concurrency // group_size)


def judge_tools(endpoint: JudgeEndpoint, rewards: Sequence[GraderReward]) -> Tools:
    """Return the samplers of the judges' models; raises `ConfigError` if no endpoint is configured."""
    judge_rewards = [reward for reward in rewards if uses_judge(reward)]
    if not judge_rewards:
        return Tools()
    if (url := endpoint.address()) is None:
        raise ConfigError(
            f"grader '{judge_rewards[0].name}' calls an endpoint, and none is configured. Set method.judge.url, or "
            "$ASSAY_JUDGE_URL if it may change between attempts."
        )
    sampler = partial(HttpEngine, base_url=url, timeout_s=endpoint.timeout_s, concurrency=endpoint.concurrency)
    singles = [single for reward in judge_rewards for single in single_graders(reward.grader)]
    named = {single.model for single in singles if isinstance(single, ScoreModel | LabelModel)}
    return Tools({name: sampler(model=name) for name in sorted(named)}, sampler(model=endpoint.embeddings))


def reward_range(rewards: Sequence[GraderReward | RunReward]) -> tuple[float, float]:
    """Return the smallest and largest reward of a completion; infinite if a reward is unbounded."""
    low = high = 0.0
    for reward in rewards:
        if not reward.weight:
            continue
        of_one = score_range(reward.grader) if isinstance(reward, GraderReward) else (-math.inf, math.inf)
        ends = sorted(reward.weight * end for end in of_one)
        low, high = low + ends[0], high + ends[1]
    return low, high


def runs_of(**rewards: Sequence[GraderReward | RunReward]) -> dict[str, CommitName]:
    """Return recipe key -> commit for the reward runs."""
    return {
        f"method.{key}[{index}]": CommitName(reward.run, reward.step)
        for key, key_rewards in rewards.items()
        for index, reward in enumerate(key_rewards)
        if isinstance(reward, RunReward)
    }


def check_rewards(
    rewards: Sequence[GraderReward | RunReward],
    manifest: DatasetManifest,
    *,
    key: str,
    longest: int,
    vocab_size: int | None,
) -> None:
    """Raise `ConfigError` for rewards that do not fit the dataset.

    `longest` is the largest number of tokens of a prompt with its completion, `vocab_size` the policy's (None
    if its folder does not say), `key` the rewards' recipe key.
    """
    if twice := first_repeated([reward.name for reward in rewards]):
        raise ConfigError(f"{key}: two rewards are named '{twice}'. Give each grader a name.")
    for index, reward in enumerate(rewards):
        where = f"{key}[{index}]"
        if isinstance(reward, RunReward):
            run = CommitName(reward.run, reward.step).run_of(where)
            shape, where = reward_model(run, where).shape(), f"{where}.run={run.run_id}"
            check_scorer(shape, where, longest=longest, vocab_size=vocab_size, what="reward model")
            continue
        check_sample_fields(reward.grader, where)
        if manifest.item_fields is not None:
            check_item_fields(
                reward.grader, manifest.item_fields, manifest.num_rows, where=where, source=f"dataset '{manifest.name}'"
            )


def reward_model(run: Run, where: str) -> NewCausalConfig | PretrainedCausalConfig:
    """Return the model configuration of a reward run; raises `ConfigError` for another method."""
    method = run.recipe["method"]
    if method.get("type") != "reward":
        raise ConfigError(
            f"{where}.run={run.run_id}: it is of method '{method['type']}', which computes no "
            "rewards. Name a run of method reward."
        )
    return _MODEL.validate_python(method["model"])
