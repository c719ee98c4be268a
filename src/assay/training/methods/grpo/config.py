"""The configuration of RL from rewards."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from assay.base.config import FrozenConfig
from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.data.dataset.checkpoint_tokens import special_token_ids
from assay.data.dataset.columns import ITEM, TOKENS
from assay.data.dataset.tokens import TOKENIZER_FILE, load_tokenizer
from assay.data.loader.config import LoaderConfig
from assay.inference.local.memory import sampling_numbers
from assay.inference.protocol import SamplingParams
from assay.inference.remote import LocalSampler, RemoteSampler
from assay.models.causal_config import PretrainedCausalConfig, check_rows, check_scorer
from assay.models.config import checkpoint_path
from assay.records.dataset import DatasetManifest
from assay.records.evaluation import Metric
from assay.records.rollout_log import GroupRecord
from assay.scoring.python_graders import check_fence
from assay.training.checkpoint.named_commit import CommitName
from assay.training.methods.grpo.outcomes import problems_of
from assay.training.methods.grpo.reward_config import (
    AnyReward,
    GraderReward,
    JudgeEndpoint,
    check_rewards,
    judge_tools,
    reward_range,
    runs_of,
)
from assay.training.trainer.method_config import CausalMethodConfig, RowScores

REWARD = Metric(name="reward", unit="rewards", higher_is_better=True)
TRUNCATED = Metric(name="truncated", unit="share", higher_is_better=False)
LENGTH = Metric(name="length", unit="tokens", higher_is_better=False)
KL = Metric(name="kl", unit="nats per token", higher_is_better=False)


class RolloutSampling(SamplingParams):
    """How completions are sampled for training: always from the whole distribution."""

    also_called: ClassVar = {
        "max_new_tokens": "max_tokens",
        "max_completion_length": "max_tokens",
        "stop_strings": "stop",
    }

    top_p: ClassVar[float] = 1.0  # type: ignore[misc]
    top_k: ClassVar[None] = None  # type: ignore[misc]
    seed: ClassVar[None] = None  # type: ignore[misc]

    temperature: PositiveFloat = 1.0
    """The loss is of the policy at temperature 1, so another value trains off-policy."""

    max_tokens: PositiveInt = 256
    """Longest completion; longer ones are truncated."""

    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Texts that end a completion; one that is a special token acts like `eos_token_id`."""

    @model_validator(mode="before")
    @classmethod
    def _draws_from_all(cls, tree: Any) -> Any:
        cut = [name for name in ("top_p", "top_k", "min_p") if isinstance(tree, Mapping) and name in tree]
        if cut:
            raise ValueError(
                f"{cut[0]}: completions to train on are sampled from the whole distribution. Truncated, it is "
                "another than the trainer computes, and ratios of the two mean nothing. Leave it out"
            )
        return tree


class _Clipped(FrozenConfig):
    """Bounds of the probability ratio, beyond which a token has no gradient."""

    also_called: ClassVar = {"epsilon": "clip_low", "epsilon_low": "clip_low", "epsilon_high": "clip_high"}

    clip_low: float = Field(default=0.2, gt=0.0, le=1.0)
    """Ratios below 1 - clip_low have no gradient at negative advantages."""

    clip_high: PositiveFloat = 0.2
    """Likewise above 1 + clip_high at positive advantages."""


class DapoLoss(_Clipped):
    """Clipped ratio times advantage; mean over the tokens of the step, so long completions weigh more.

    Yu et al. 2025, arXiv:2503.14476, eq. 8 and section 3.1.
    """

    type: Literal["dapo"] = "dapo"

    clip_high: PositiveFloat = 0.28
    """The paper's value."""


class GrpoLoss(_Clipped):
    """Clipped ratio times advantage; mean over a completion's tokens, then over completions.

    Shao et al. 2024, arXiv:2402.03300, eq. 3.
    """

    type: Literal["grpo"]


class DrGrpoLoss(_Clipped):
    """Clipped ratio times advantage; sum over a completion's tokens divided by `sampling.max_tokens`; mean
    over completions.

    Liu et al. 2025, arXiv:2503.20783, section 3.2; use `advantage_scale: none`.
    """

    type: Literal["dr_grpo"]


class BnpoLoss(_Clipped):
    """`dapo` with symmetric clipping: what TRL calls `bnpo`, averaged over the tokens of the step."""

    type: Literal["bnpo"]


class GspoLoss(_Clipped):
    """One ratio per completion, the geometric mean of its tokens' ratios, clipped as a whole; mean over completions.

    Zheng et al. 2025, arXiv:2507.18071, eq. 5 and 7.
    """

    type: Literal["gspo"]

    clip_low: float = Field(default=3e-4, gt=0.0, le=1.0)
    """The paper's value."""

    clip_high: PositiveFloat = 4e-4
    """The paper's value."""


class CispoLoss(FrozenConfig):
    """Log-probability times advantage, weighted by the capped ratio; mean over tokens.

    MiniMax 2025, arXiv:2506.13585, eq. 4 and 5.
    """

    also_called: ClassVar = {"epsilon_high": "max_ratio"}

    type: Literal["cispo"]

    max_ratio: float = Field(default=5.0, ge=1.0)
    """Largest weight; the paper's 1 + epsilon."""


AnyLoss = DapoLoss | GrpoLoss | DrGrpoLoss | BnpoLoss | GspoLoss | CispoLoss


class KeepOverlong(FrozenConfig):
    """They are graded and trained on."""

    type: Literal["keep"] = "keep"


class MaskOverlong(FrozenConfig):
    """They count in the group's mean and are not trained on (DAPO, section 3.4)."""

    type: Literal["mask"]


class ShapeOverlong(FrozenConfig):
    """A penalty is subtracted that rises over the last tokens before the limit (DAPO, eq. 13)."""

    type: Literal["shape"]

    buffer_tokens: PositiveInt
    """Tokens before `sampling.max_tokens` over which the penalty rises."""

    penalty: PositiveFloat = 1.0
    """Penalty of a completion that fills the buffer, in rewards."""


class FrozenPolicy(FrozenConfig):
    """A frozen model that computes log-probabilities in every step."""

    path: str | None = None
    """Folder of the reference, as `method.model.path`; null: the model before the first step."""


def _with_type(tree: Any, *, usual: str) -> Any:
    """Fill in the type, so that `method.loss.clip_high=0.3` need not name the loss."""
    return {"type": usual, **tree} if isinstance(tree, Mapping) else tree


class GrpoConfig(CausalMethodConfig):
    """A causal language model completes each prompt several times and learns from the completions that earned more
    than their group's mean.
    """

    also_called: ClassVar = {
        "num_generations": "group_size",
        "n": "group_size",
        "temperature": "sampling",
        "max_tokens": "sampling",
        "max_new_tokens": "sampling",
        "max_completion_length": "sampling",
        "beta": "kl",
        "loss_type": "loss",
        "epsilon": "loss",
        "epsilon_high": "loss",
        "num_iterations": "updates_per_rollout",
        "off_policy_steps": "staleness",
        "max_staleness": "staleness",
        "scale_rewards": "advantage_scale",
        "mask_truncated_completions": "overlong",
        "reward_funcs": "rewards",
        "reward_model": "rewards",
        "grader": "rewards",
        "ref_model": "reference",
        "engine": "sampler",
        "vllm": "sampler",
        "base": "model",
        "encoder": "model",
    }

    type: Literal["grpo"] = "grpo"

    model: PretrainedCausalConfig
    """The policy before the first step: a folder with `tokenizer.json` and an end of completions
    (`eos_token_id`, or its chat template's)."""

    rewards: tuple[AnyReward, ...] = Field(min_length=1)
    """Several are summed."""

    held_out: tuple[AnyReward, ...] = ()
    """Graders of held-out prompts; none: `rewards`."""

    judge: JudgeEndpoint = JudgeEndpoint()
    """The endpoint of judges."""

    group_size: int = Field(default=8, ge=2)
    """Completions per prompt."""

    sampling: RolloutSampling = RolloutSampling()
    """For training."""

    sampler: Annotated[
        LocalSampler | RemoteSampler, Field(discriminator="type"), BeforeValidator(partial(_with_type, usual="remote"))
    ] = LocalSampler()
    """Held-out prompts are always completed by the training process."""

    loss: Annotated[AnyLoss, Field(discriminator="type"), BeforeValidator(partial(_with_type, usual="dapo"))] = (
        DapoLoss()
    )
    """The loss and its average."""

    advantage_scale: Literal["group", "step", "none"] = "group"
    """Divides advantages: the standard deviation of the rewards of the `group` or `step`, or nothing (`none`).
    `group` gives prompts that are nearly always right or wrong as much weight as open ones; `step` gives them
    less.
    """

    overlong: Annotated[
        KeepOverlong | MaskOverlong | ShapeOverlong,
        Field(discriminator="type"),
        BeforeValidator(partial(_with_type, usual="shape")),
    ] = KeepOverlong()
    """For completions that `sampling.max_tokens` cut."""

    groups_per_lane: PositiveInt | None = None
    """Train on this many groups of each lane, the first with non-zero advantages; null: all."""

    updates_per_rollout: PositiveInt = 1
    """Updates from one step's completions. Clipping matters from the second on."""

    staleness: NonNegativeInt = 0
    """Steps of delay: the completions of step s are sampled with the weights after step s - 1 - staleness.
    Ratios are to the sampling policy and clipped from the first update on (PPO, arXiv:1707.06347;
    off-policy steps, arXiv:2410.18252)."""

    kl: NonNegativeFloat = 0.0
    """Weight of the divergence from the reference, per token (k3 times the ratio); 0: no reference."""

    reference: FrozenPolicy = FrozenPolicy()
    """The reference model, if `kl` is not 0."""

    max_reward_failures: float = Field(default=0.05, ge=0.0, le=1.0)
    """Largest share of ungraded completions in a step; beyond it the run stops without the update."""

    validation_temperature: NonNegativeFloat | None = None
    """For held-out prompts; null: `sampling.temperature`, so that both rewards are of one policy. 0 is greedy,
    which may get worse while the sampled policy improves.
    """

    slice_columns: tuple[str, ...] = ()
    """Metadata columns that slice the evaluation."""

    @property
    def columns(self) -> tuple[str, ...]:
        return (TOKENS, ITEM, *self.slice_columns)

    @property
    def updates_per_step(self) -> int:
        return self.updates_per_rollout

    @property
    def runs(self) -> Mapping[str, CommitName]:
        return runs_of(rewards=self.rewards, held_out=self.held_out)

    @property
    def predictions(self) -> RowScores:
        """Scores of one completion of each validation prompt."""
        apart = (KL,) if self.kl else ()
        ranges = {
            REWARD.name: reward_range(self.held_out or self.rewards),
            LENGTH.name: (0.0, float(self.sampling.max_tokens)),
            KL.name: (0.0, math.inf),
        }
        return RowScores((REWARD, TRUNCATED, LENGTH, *apart), is_sampled=True, ranges=ranges)

    @property
    def may_compile(self) -> bool:
        return False

    @property
    def completions_per_prompt(self) -> int:
        return self.group_size

    def end_ids(self) -> tuple[int, ...]:
        """Return the policy's end tokens, and stop strings that are special tokens."""
        special = self._special_tokens()
        stops = [special[stop] for stop in self.sampling.stop if stop in special]
        return tuple(dict.fromkeys([*stops, *self.model.end_ids()]))

    def _special_tokens(self) -> dict[str, int]:
        """Return the policy's special tokens if there are stop strings that may name them."""
        folder = checkpoint_path(self.model.path)
        has_any = self.sampling.stop and (folder / TOKENIZER_FILE).is_file()
        return special_token_ids(load_tokenizer(folder)) if has_any else {}

    def check_dataset(self, manifest: DatasetManifest) -> None:
        check_rows(self.model, manifest, "method.model")
        self._refuse_no_end(manifest)
        shape, needed = self.model.shape(), manifest.lengths.max + self.sampling.max_tokens
        size = None if shape is None else shape.vocab_size
        if self.reference.path is not None:
            reference = PretrainedCausalConfig(type="pretrained", path=self.reference.path)
            check_rows(reference, manifest, "method.reference")
            where = f"method.reference.path={reference.path}"
            check_scorer(reference.shape(), where, longest=needed, vocab_size=size, what="reference")
        check_rewards(self.rewards, manifest, key="method.rewards", longest=needed, vocab_size=size)
        check_rewards(self.held_out, manifest, key="method.held_out", longest=needed, vocab_size=size)
        judge_tools(
            self.judge, [reward for reward in (*self.rewards, *self.held_out) if isinstance(reward, GraderReward)]
        )
        if shape is not None and needed > shape.max_tokens:
            raise ConfigError(
                f"method.sampling.max_tokens={self.sampling.max_tokens}: with the longest prompt of dataset "
                f"'{manifest.name}' ({manifest.lengths.max} tokens) that is {needed}, and method.model takes "
                f"{shape.max_tokens}. Use {shape.max_tokens - manifest.lengths.max} or fewer, or build the "
                "dataset with shorter prompts."
            )

    def _refuse_no_end(self, manifest: DatasetManifest) -> None:
        """Raise if the policy cannot end completions where the dataset's conversations end."""
        ends, boundaries = self.end_ids(), manifest.boundaries
        expected = boundaries.end_ids if boundaries else ()
        if self.sampling.stop or set(ends) & set(expected) or (ends and not expected):
            return
        named = f"ends completions with token {', '.join(map(str, ends))}" if ends else "names no end token"
        rows = f", and turns of dataset '{manifest.name}' end with token {expected[0]}" if expected else ""
        raise ConfigError(
            f"method.model.path={self.model.path}: it {named} (eos_token_id){rows}: every completion would run to "
            "method.sampling.max_tokens. Name the token as 'eos_token_id' in its generation_config.json, or "
            'its text in method.sampling.stop, e.g. ["<|im_end|>"].'
        )

    def check_batches(self, loader: LoaderConfig) -> None:
        groups, rows = self.groups_per_lane, loader.rows_per_lane
        if groups is not None and groups > rows:
            raise ConfigError(
                f"method.groups_per_lane={groups}: a step has {number_of(rows, 'prompt')} in each lane "
                f"(loader.global_batch_size={loader.global_batch_size}, loader.lanes={loader.lanes}), so there "
                f"are never so many groups to train on. Use {rows} or fewer, or sample more prompts: "
                f"loader.global_batch_size={2 * groups * loader.lanes}."
            )

    def check_services(self, manifest: DatasetManifest) -> None:
        graders = [reward for reward in (*self.rewards, *self.held_out) if isinstance(reward, GraderReward)]
        check_fence(reward.grader for reward in graders)
        if isinstance(self.sampler, RemoteSampler):
            special = self._special_tokens()
            for stop in self.sampling.stop:
                if stop not in special and any(token in stop for token in special):
                    raise ConfigError(
                        f"method.sampling.stop: {stop!r} holds a special token, which a remote engine leaves "
                        "out of the text that it searches. Name the token alone."
                    )
            # Here, since it brings torch along, and most recipes need not ask.
            from assay.training.methods.grpo.remote import check_engine

            check_engine(self.sampler, self.model, self.sampling, manifest.lengths.max + self.sampling.max_tokens)

    def rollout_log_problems(self, groups: Sequence[GroupRecord]) -> Iterator[str]:
        return problems_of(groups, self)

    def training_sequences(self, rows: int, longest: int) -> tuple[int, int]:
        groups = rows if self.groups_per_lane is None else min(rows, self.groups_per_lane)
        return groups * self.group_size, longest + self.sampling.max_tokens

    @property
    def num_references(self) -> int:
        return int(self.kl > 0)

    @property
    def num_frozen_copies(self) -> int:
        return int(self.kl > 0 and (self.reference.path is not None or self.model.lora is None))

    def sampling_numbers(self, rows: int, longest: int) -> int:
        decoder, shape = self.model.decoder(), self.model.shape()
        if decoder is None or shape is None:
            return 0
        return sampling_numbers(
            decoder,
            shape.vocab_size,
            prompts=rows,
            samples=self.group_size,
            longest=longest,
            max_tokens=self.sampling.max_tokens,
        )

    @model_validator(mode="after")
    def _settings_fit(self) -> "GrpoConfig":
        if self.reference.path is not None and not self.kl:
            raise ValueError("method.reference.path: unused while method.kl is 0. Set method.kl, or leave the path out")
        overlong = self.overlong
        if isinstance(overlong, ShapeOverlong) and overlong.buffer_tokens > self.sampling.max_tokens:
            raise ValueError(
                f"method.overlong.buffer_tokens={overlong.buffer_tokens} is more than "
                f"method.sampling.max_tokens={self.sampling.max_tokens}"
            )
        sampler = self.sampler
        if self.staleness and isinstance(sampler, RemoteSampler):
            raise ValueError("method.staleness: not supported with a remote sampler. Leave it out")
        truncates = isinstance(sampler, RemoteSampler) and sampler.logprob_gap.on_excess == "truncate"
        if truncates and isinstance(self.loss, GspoLoss):
            raise ValueError(
                "method.sampler.logprob_gap.on_excess=truncate weights tokens, but loss gspo has one ratio for a "
                "completion. Use refuse"
            )
        return self
