"""Connects RL from rewards to the trainer's protocol.

A step begins with rollouts of the current policy (see `rollouts`; `remote` for another process) and makes one
update from them, or several. In the first update the ratio of policy and sampler is 1; later updates use the
logprobs that the first one computed (`old_logprobs`). With `staleness`, rollouts are some steps old, and all
updates use the sampler's logprobs.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from assay.base.seeds import derive_key
from assay.base.shapes import Float64
from assay.data.dataset.tokens import load_tokenizer
from assay.data.loader.batch import LaneShare, MicroBatch
from assay.inference.local.generator import Generator
from assay.inference.local.stop_tokens import CompletionText
from assay.inference.protocol import SamplingParams
from assay.inference.remote import LogprobGap, RemoteSampler
from assay.inference.rollout import GenerationCancelledError, Prompt, Rollout
from assay.models.causal_config import PretrainedCausalConfig
from assay.models.config import checkpoint_path
from assay.models.exporting import ExportOptions, save_model
from assay.models.head import TokenScores
from assay.models.lora import adapters_off
from assay.models.token_scores import CausalNetwork, line_of
from assay.records.exported_model import ModelForm
from assay.training.methods.grpo.batch import (
    RolloutGroup,
    TrainingSample,
    completion_arrays,
    groups_from_tensors,
    has_completions,
    micro_batches,
    num_completion_tokens,
    prompt_arrays,
    prompt_groups,
    rewards_of,
)
from assay.training.methods.grpo.config import KL, LENGTH, REWARD, TRUNCATED, GrpoConfig
from assay.training.methods.grpo.loss import (
    TOKEN_MEANS,
    LineRows,
    divergences,
    importance_weights,
    policy_loss,
    reduced_loss,
)
from assay.training.methods.grpo.remote import RemoteRollouts
from assay.training.methods.grpo.rewards import Rewards, check_failure_rate
from assay.training.methods.grpo.rollouts import (
    NAMES,
    OUTCOMES,
    SHAPED_REWARD,
    SHAPED_REWARD_SQUARE,
    digest_of,
    moments,
    outcomes,
    prompts_of,
    rollout_log_entries,
    rollout_metrics,
    scaled_lane,
    training_lane,
    with_grades,
)
from assay.training.numerics import MetricSum, combined_digest
from assay.training.rollouts.source import ReplayedRollout, RolloutContext
from assay.training.samples import LaneSamples
from assay.training.trainer.method import FrozenModels, Loss, Tensors

REFERENCE, OLD, LOGPROB_GAP = "reference", "old_logprobs", "logprob_gap"
DRIFT = "drift"
"""Name of the same metric with `staleness`: it then measures how far the policy has moved, not an error of the
sampler."""


class GrpoMethod:
    """Trains a language model on prompts to generate completions with higher rewards."""

    form: ModelForm = "language_model"

    def __init__(self, config: GrpoConfig) -> None:
        self.config = config
        self._engine: tuple[nn.Module, Generator] | None = None
        """The last model that generated, with its generator."""

    @property
    def metrics(self) -> Sequence[str]:
        of_loss = ["entropy", self._gap_name]
        of_loss += ["weighed"] if self._truncated else []
        of_loss += ["kl"] if self.config.kl else []
        of_loss += ["clipped"] if self._can_clip else []
        return (*self._rewards.metrics, *NAMES, *self.step_statistics, *of_loss)

    @property
    def step_statistics(self) -> Sequence[str]:
        return (SHAPED_REWARD, SHAPED_REWARD_SQUARE) if self.config.advantage_scale == "step" else ()

    @property
    def updates_per_rollout(self) -> int:
        return self.config.updates_per_rollout

    @property
    def staleness(self) -> int:
        return self.config.staleness

    def build_model(self) -> nn.Module:
        """Return the policy, loaded from its folder."""
        return CausalNetwork(self.config.model)

    def build_frozen_models(self) -> FrozenModels:
        """Return the reward models, and the reference unless it is the policy without its adapters."""
        frozen_models = dict(self._rewards.networks())
        if self.config.kl and not self._is_base:
            frozen_models[REFERENCE] = self._reference
        return frozen_models

    def rollouts(
        self,
        model: nn.Module,
        lanes: Sequence[LaneShare],
        frozen_models: FrozenModels,
        context: RolloutContext,
        *,
        max_tokens: int | None,
    ) -> list[LaneSamples]:
        """Generate and grade the completions of all lanes together; see `RolloutMethod`."""
        prompts_by_lane = [list(prompt_groups(lane.micro_batches)) for lane in lanes]
        all_prompts = [group for prompts in prompts_by_lane for group in prompts]
        groups = iter(self._rollout_groups(model, all_prompts, frozen_models, context))
        samples = []
        for lane, prompts in zip(lanes, prompts_by_lane, strict=True):
            own = list(islice(groups, len(prompts)))
            sums = rollout_metrics(own)
            if self.step_statistics:
                sums |= moments(own)
            sums |= self._rewards.sums([grade for group in own for grade in group.grades])
            line = next((batch.line for batch in lane.micro_batches), None)
            trained_lane = training_lane(lane.lane, own, self.config, max_tokens, line)
            graders = self._rewards.graders
            rollout_log = rollout_log_entries(own, trained_lane, self.config, step=context.step, graders=graders)
            samples.append(LaneSamples(trained_lane, sums, combined_digest([digest_of(own)]), rollout_log))
        return samples

    @property
    def rollout_costs(self) -> Mapping[str, float]:
        return self._engine[1].cost.metrics() if self._engine and self._remote is None else {}

    def rollout(
        self,
        model: nn.Module,
        lane: LaneShare,
        frozen_models: FrozenModels,
        context: RolloutContext,
        *,
        row_id: int,
        sample: int,
    ) -> ReplayedRollout:
        """Generate one completion again; see `RolloutMethod`.

        If rows of a tile are not independent, the whole group is generated. Completions of a remote engine are
        read from the run.
        """
        groups = self._rollout_groups(model, list(prompt_groups(lane.micro_batches)), frozen_models, context)
        index = [group.row_id for group in groups].index(row_id)
        group, rollout = groups[index], groups[index].rollouts[sample]
        if self._remote is None:
            prompts = prompts_of([group], self.config.group_size, seed=context.seed)
            alone = [prompts[sample]] if self._generator(model).rows_are_independent else prompts
            rollout = self._generate(model, alone, self.config.sampling)[sample % len(alone)]
        failure = group.grades[sample].failure
        outcome = outcomes(groups, self.config)[index][sample]
        advantage = float(group.advantages[sample])
        return ReplayedRollout(
            prompt=self._tokenizer.decode(group.prompt.tolist(), skip_special_tokens=False),
            completion=self._texts([group._replace(rollouts=[rollout])])[0],
            tokens=tuple(rollout.tokens.tolist()),
            logprobs=tuple(rollout.logprobs.tolist()),
            ended_by=rollout.reason,
            reward=group.grades[sample].score,
            failure=None if failure is None else str(failure),
            group_rewards=tuple(grade.score for grade in group.grades),
            advantage=None if np.isnan(advantage) else advantage,
            outcome=outcome,
            because=OUTCOMES[outcome],
            digest=rollout.digest,
            batched_digest=group.rollouts[sample].digest,
        )

    def normalize_advantages(self, lane: LaneShare, totals: Mapping[str, float]) -> LaneShare:
        """Divide advantages by the standard deviation of all shaped rewards of the step."""
        return scaled_lane(lane, totals)

    def check_step(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Raise if too many completions have no grade, or if a remote engine's logprobs differ from the trainer's."""
        most, example = self.config.max_reward_failures, self._rewards.last_failure
        check_failure_rate(metrics, most, step=step, example=example)
        if self._remote is not None:
            self._remote.check_logprob_gap(metrics.get(LOGPROB_GAP, 0.0), step=step)

    def weight(self, micro_batch: MicroBatch) -> int:
        """Return the number of completion tokens, or of completions, as the loss averages."""
        is_over_tokens = self.config.loss.type in TOKEN_MEANS
        return num_completion_tokens(micro_batch) if is_over_tokens else len(micro_batch.row_ids)

    def tensors(self, micro_batch: MicroBatch, device: torch.device) -> Tensors:
        arrays = (completion_arrays if has_completions(micro_batch) else prompt_arrays)(micro_batch)
        return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}

    def blank(self, device: torch.device) -> Tensors:
        """Return a completion of one token to a prompt of one token."""
        return {
            "input_ids": torch.zeros(1, 2, dtype=torch.int64, device=device),
            "loss_mask": torch.ones(1, 1, dtype=torch.bool, device=device),
            "sampler_logprobs": torch.zeros(1, 1, device=device),
            "advantages": torch.zeros(1, device=device),
        }

    def loss(self, model: nn.Module, tensors: Tensors, frozen_models: FrozenModels) -> Loss:
        loss_mask, scores = tensors["loss_mask"], self._scores(model, tensors)
        logprobs, num_tokens = scores.logprobs, loss_mask.sum()
        sampler_logprobs = tensors["sampler_logprobs"]
        # Logprobs of the step's first update: in that update the policy's own, so its ratios are exactly 1.
        first_logprobs = tensors.get(OLD, logprobs.detach())
        # Stale rollouts come from older weights, so their ratios are to the sampler in every update.
        old_logprobs = sampler_logprobs if self.staleness else first_logprobs
        advantages = tensors["advantages"]
        rows = LineRows(tensors["row_of"], tensors["num_completion_tokens"]) if "row_of" in tensors else None
        token_losses, is_clipped = policy_loss(logprobs, old_logprobs, advantages, loss_mask, self.config.loss, rows)
        gaps = first_logprobs - sampler_logprobs
        metrics = {
            "entropy": MetricSum(scores.entropies.detach().sum(), num_tokens),
            self._gap_name: MetricSum((gaps.abs() * loss_mask).sum(), num_tokens),
        }
        if self._can_clip:
            metrics["clipped"] = MetricSum((is_clipped & loss_mask).sum(), num_tokens)
        if self.config.kl:
            with torch.no_grad(), adapters_off(model) if self._is_base else nullcontext():
                reference_logprobs = self._scores(frozen_models.get(REFERENCE, model), tensors).logprobs
            divergence = divergences(logprobs, old_logprobs, reference_logprobs)
            token_losses = token_losses + self.config.kl * divergence
            metrics["kl"] = MetricSum((divergence.detach() * loss_mask).sum(), num_tokens)
        if self._truncated:
            weights = importance_weights(gaps, self._truncated)
            token_losses = token_losses * weights
            metrics["weighed"] = MetricSum(((weights != 1) & loss_mask).sum(), num_tokens)
        longest = self.config.sampling.max_tokens
        loss = reduced_loss(token_losses, loss_mask, self.config.loss, max_tokens=longest, rows=rows)
        return Loss(loss, metrics, {OLD: first_logprobs})

    def predictions(self, model: nn.Module, tensors: Tensors) -> Mapping[str, Float64[Tensor, "row"]]:
        """Return reward, truncation and length of one completion for each prompt, and its divergence from the
        reference; nothing for a blank."""
        if "items" not in tensors:
            return {}
        groups, rewards = groups_from_tensors(tensors), self._validation_rewards
        # The same keys in each evaluation, so that only the model differs.
        prompts = [Prompt(group.prompt, derive_key("validation", group.row_id)) for group in groups]
        own = self.config.validation_temperature
        sampling = self.config.sampling if own is None else self.config.sampling.model_copy(update={"temperature": own})
        rollouts = self._generate(model, prompts, sampling)
        groups = [group._replace(rollouts=[rollout]) for group, rollout in zip(groups, rollouts, strict=True)]
        frozen_models = {name: network.to(tensors["input_ids"].device) for name, network in rewards.networks().items()}
        rewards_of_rows = rewards_of(rewards.grade(groups, self._texts(groups), frozen_models))
        cut = torch.tensor([rollout.reason == "length" for rollout in rollouts], dtype=torch.float64)
        lengths = torch.tensor([len(rollout.tokens) for rollout in rollouts], dtype=torch.float64)
        found = {REWARD.name: torch.from_numpy(rewards_of_rows), TRUNCATED.name: cut, LENGTH.name: lengths}
        return found | ({KL.name: self._divergence(model, groups)} if self.config.kl else {})

    def save_exported(self, model: nn.Module, folder: Path, options: ExportOptions) -> None:
        assert isinstance(model, CausalNetwork), type(model)
        save_model(model.network, self.config.model, folder, options)

    @property
    def _gap_name(self) -> str:
        return DRIFT if self.staleness else LOGPROB_GAP

    @property
    def _can_clip(self) -> bool:
        """True if the ratio of policy and sampler can differ from 1."""
        return self.updates_per_rollout > 1 or self.staleness > 0

    @property
    def _is_base(self) -> bool:
        """True if the reference is the model with its adapters disabled."""
        return self.config.reference.path is None and self.config.model.lora is not None

    @cached_property
    def _reference(self) -> nn.Module:
        path = self.config.reference.path or self.config.model.path
        return CausalNetwork(PretrainedCausalConfig(type="pretrained", path=path))

    @cached_property
    def _rewards(self) -> Rewards:
        return Rewards(self.config.rewards, group_size=self.config.group_size, endpoint=self.config.judge)

    @cached_property
    def _validation_rewards(self) -> Rewards:
        held_out = self.config.held_out
        key = "method.held_out" if held_out else "method.rewards"
        return Rewards(held_out or self.config.rewards, group_size=1, key=key, endpoint=self.config.judge)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return load_tokenizer(checkpoint_path(self.config.model.path))

    @cached_property
    def _ends(self) -> frozenset[int]:
        return frozenset(self.config.end_ids())

    def _scores(self, model: nn.Module, tensors: Tensors) -> TokenScores:
        temperature, line = self.config.sampling.temperature, line_of(tensors)
        scores: TokenScores = model(
            tensors["input_ids"], tensors.get("position_ids"), tensors["loss_mask"], temperature=temperature, line=line
        )
        return scores

    def _rollout_groups(
        self, model: nn.Module, prompts: Sequence[RolloutGroup], frozen_models: FrozenModels, context: RolloutContext
    ) -> list[RolloutGroup]:
        """Generate and grade the completions of all prompts."""
        size = self.config.group_size
        context.enter_phase("generation")
        if self._remote is None:
            sampled = prompts_of(prompts, size, seed=context.seed)
            rollouts = self._generate(model, sampled, self.config.sampling, context.is_stopping)
        else:
            assert isinstance(model, CausalNetwork), type(model)
            rollouts = self._remote.of(model, prompts, context)
        context.enter_phase("reward")
        if context.is_stopping():  # grading may take as long as generation
            raise GenerationCancelledError
        starts = range(0, len(rollouts), size)
        groups = [group._replace(rollouts=rollouts[at : at + size]) for group, at in zip(prompts, starts, strict=True)]
        cache, texts = context.reward_cache, self._texts(groups)
        grades = self._rewards.grade(groups, texts, frozen_models, step=context.step, reward_cache=cache)
        return [
            with_grades(group, grades[at : at + size], self.config) for group, at in zip(groups, starts, strict=True)
        ]

    @cached_property
    def _remote(self) -> RemoteRollouts | None:
        """The remote engine that generates rollouts; None if this process does."""
        config = self.config
        if not isinstance(config.sampler, RemoteSampler):
            return None
        size, ends = config.group_size, self._ends
        return RemoteRollouts(config.sampler, config.model, self.config.sampling, group_size=size, ends=ends)

    @property
    def _truncated(self) -> LogprobGap | None:
        """The configuration of truncated importance sampling; None if it is off."""
        sampler = self.config.sampler
        gap = sampler.logprob_gap if isinstance(sampler, RemoteSampler) else None
        return gap if gap is not None and gap.on_excess == "truncate" else None

    def _divergence(self, model: nn.Module, groups: Sequence[RolloutGroup]) -> Float64[Tensor, "row"]:
        """Return each completion's divergence from the reference, per token."""
        samples = [TrainingSample(group, rollout, 0.0) for group in groups for rollout in group.rollouts]
        [batch] = micro_batches(samples, None)
        tensors = self.tensors(batch, next(model.parameters()).device)
        own, loss_mask = self._scores(model, tensors).logprobs, tensors["loss_mask"]
        with adapters_off(model) if self._is_base else nullcontext():
            reference = model if self._is_base else self._reference.to(own.device).eval()
            reference_logprobs = self._scores(reference, tensors).logprobs
        token_losses = (divergences(own, own, reference_logprobs) * loss_mask).double()
        return (token_losses.sum(dim=1) / loss_mask.sum(dim=1)).cpu()

    def _generate(
        self,
        model: nn.Module,
        prompts: Sequence[Prompt],
        sampling: SamplingParams,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> list[Rollout]:
        if not prompts:
            return []
        return self._generator(model).generate(prompts, sampling, is_stopping)

    def _generator(self, model: nn.Module) -> Generator:
        """Return the generator of the model, created on first use."""
        assert isinstance(model, CausalNetwork), type(model)
        if self._engine is None or self._engine[0] is not model:
            self._engine = model, Generator(model.network, ends=self._ends, tokenizer=self._tokenizer)
        return self._engine[1]

    def _texts(self, groups: Sequence[RolloutGroup]) -> list[str]:
        """Return the texts that graders read, without the end token or stop string."""
        text = CompletionText(self._tokenizer, self.config.sampling.stop, self._ends)
        return [text.of(rollout.tokens.tolist()) for group in groups for rollout in group.rollouts]
