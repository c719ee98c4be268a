"""Joins learning from rewards to the trainer's protocol.

A step begins with answers of the policy as it is (see `rollouts`; `remote` where another process draws them),
and makes one update from them, or several. In the first what drew them is what learns, and the ratio of the two
is 1; later ones are held against the log-probabilities that the first one computed. With
`staleness` answers were drawn some steps before, and every update is held against what drew them.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from assay.base.seeds import derive_key
from assay.base.shapes import Float64, Shaped
from assay.data.dataset.tokens import load_tokenizer
from assay.data.loader.batch import LaneShare, MicroBatch
from assay.inference.local.generator import Generator
from assay.inference.local.stop_tokens import CompletionText
from assay.inference.remote_config import LogprobGap, RemoteSampler
from assay.inference.rollout import GenerationAbandonedError, Prompt, Rollout
from assay.models.causal_config import PretrainedCausalConfig
from assay.models.config import checkpoint_path
from assay.models.exporting import Leaving, save_model
from assay.models.lora import adapters_off
from assay.models.token_scores import CausalNetwork, TokenScores
from assay.records.exported_model import ModelForm
from assay.scoring.sampler import Sampling
from assay.training.checkpoint.grade_book import GradeBook
from assay.training.methods.grpo.batch import (
    PromptRow,
    TaughtAnswer,
    answer_arrays,
    is_of_answers,
    micro_batches,
    num_answer_tokens,
    prompt_arrays,
    rows_behind,
    rows_of,
)
from assay.training.methods.grpo.config import KL, LENGTH, REWARD, TRUNCATED, GrpoConfig
from assay.training.methods.grpo.judging import JudgedGroups
from assay.training.methods.grpo.loss import TOKEN_MEANS, divergences, policy_loss, summed, truncated_weights
from assay.training.methods.grpo.remote import RemoteAnswers
from assay.training.methods.grpo.rewards import Graded, Rewards, refuse_failures
from assay.training.methods.grpo.rollouts import (
    NAMES,
    OUTCOMES,
    PAID,
    PAID_SQUARE,
    AnswerGroup,
    digest_of,
    grouped,
    journaled,
    learned_lane,
    moments,
    outcomes,
    prompts_of,
    rollout_digest,
    scaled_lane,
    tallies,
)
from assay.training.trainer.method import EnterPhase, Helpers, Loss, MetricSum, RolledOut, RolloutAlone
from assay.training.trainer.numerics import combined_digest

REFERENCE, OLD, LOGPROB_GAP = "reference", "old_logprobs", "logprob_gap"
DRIFT = "drift"
"""The same with `staleness`: then it is how far the model has moved since, and no fault of the sampler."""


class GrpoMethod:
    """Prompts to a model whose answers earn more."""

    form: ModelForm = "language_model"

    def __init__(self, config: GrpoConfig) -> None:
        self.config = config
        self._engine: tuple[nn.Module, Generator] | None = None
        """The model that answered last, and what it was asked through."""

    @property
    def metrics(self) -> Sequence[str]:
        """What is written down with every step, beside the loss."""
        of_loss = ["entropy", self._gap_name]
        of_loss += ["weighed"] if self._truncated else []
        of_loss += ["kl"] if self.config.kl else []
        of_loss += ["clipped"] if self._may_clip else []
        return (*self._rewards.metrics, *NAMES, *self.settled_by, *of_loss)

    @property
    def settled_by(self) -> Sequence[str]:
        """See `RolloutMethod`."""
        return (PAID, PAID_SQUARE) if self.config.advantage_scale == "step" else ()

    @property
    def updates_per_rollout(self) -> int:
        """See `RolloutMethod`."""
        return self.config.updates_per_rollout

    @property
    def staleness(self) -> int:
        """See `RolloutMethod`."""
        return self.config.staleness

    def build_model(self) -> nn.Module:
        """The network, as its folder has it."""
        return CausalNetwork(self.config.model)

    def build_helpers(self) -> Helpers:
        """The reference, if it is asked and is not the model below its adapters; and reward models."""
        helpers = dict(self._rewards.networks())
        if self.config.kl and not self._is_base:
            helpers[REFERENCE] = self._reference
        return helpers

    def rollouts(
        self,
        model: nn.Module,
        lanes: Sequence[LaneShare],
        helpers: Helpers,
        *,
        step: int,
        seed: int,
        max_tokens: int | None,
        book: GradeBook | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
        enter_phase: EnterPhase = lambda phase: None,
    ) -> list[RolledOut]:
        """The lanes' prompts answered and graded, all together; see `RolloutMethod`."""
        of_lanes = [list(rows_of(lane.micro_batches)) for lane in lanes]
        rows, size = [row for of_lane in of_lanes for row in of_lane], self.config.group_size
        all_groups, graded = self._groups(
            model,
            rows,
            helpers,
            step=step,
            seed=seed,
            book=book,
            is_stopping=is_stopping,
            enter_phase=enter_phase,
        )
        groups, paid = iter(all_groups), iter(graded)
        made = []
        for lane, of_lane in zip(lanes, of_lanes, strict=True):
            own = list(islice(groups, len(of_lane)))
            sums = {
                name: MetricSum(torch.tensor(float(each.sum)), each.weight)
                for name, each in tallies(own).items()
            }
            if self.settled_by:
                sums |= {
                    name: MetricSum(torch.tensor(each.sum, dtype=torch.float64), each.weight)
                    for name, each in moments(own).items()
                }
            of_own = list(islice(paid, size * len(of_lane)))
            sums |= self._rewards.sums(of_own)
            learned = learned_lane(lane.lane, own, self.config, max_tokens)
            journal = journaled(own, of_own, learned, self.config, step=step, graders=self._rewards.graders)
            made.append(RolledOut(learned, sums, combined_digest([digest_of(own)]), journal))
        return made

    @property
    def rollout_costs(self) -> Mapping[str, float]:
        """See `RolloutMethod`."""
        return self._engine[1].cost.metrics() if self._engine and self._remote is None else {}

    def rollout(
        self,
        model: nn.Module,
        lane: LaneShare,
        helpers: Helpers,
        *,
        row_id: int,
        sample: int,
        step: int,
        seed: int,
        book: GradeBook | None = None,
    ) -> RolloutAlone:
        """See `RolloutMethod`. Where rows of a tile are not independent, an answer is made with its group; what
        a remote engine answered is what was kept."""
        rows = list(rows_of(lane.micro_batches))
        groups, graded = self._groups(model, rows, helpers, step=step, seed=seed, book=book)
        place = [row.row_id for row in rows].index(row_id)
        row, group, size = rows[place], groups[place], self.config.group_size
        answer = group.rollouts[sample]
        if self._remote is None:
            prompts = prompts_of([row], size, seed=seed)
            alone = [prompts[sample]] if self._generator(model).rows_are_independent else prompts
            answer = self._answered(model, alone, self._sampling)[sample % len(alone)]
        paid = graded[place * size : (place + 1) * size]
        outcome = outcomes(groups, self.config)[place][sample]
        advantage = float(group.advantages[sample])
        return RolloutAlone(
            prompt=self._tokenizer.decode(row.tokens.tolist(), skip_special_tokens=False),
            answer=self._text(answer),
            tokens=tuple(answer.tokens.tolist()),
            logprobs=tuple(answer.logprobs.tolist()),
            ended_by=answer.reason,
            reward=paid[sample].reward,
            failure=None if paid[sample].failure is None else str(paid[sample].failure),
            group_rewards=tuple(each.reward for each in paid),
            advantage=None if np.isnan(advantage) else advantage,
            outcome=outcome,
            because=OUTCOMES[outcome],
            digest=rollout_digest(answer),
            digest_beside=rollout_digest(group.rollouts[sample]),
        )

    def settled(self, lane: LaneShare, totals: Mapping[str, float]) -> LaneShare:
        """See `RolloutMethod`: with advantages over the deviation of all that the step paid."""
        return scaled_lane(lane, totals)

    def check_step(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Raise where too many of a step's answers have no grade, or a remote engine drew otherwise than it
        should."""
        most, example = self.config.max_reward_failures, self._rewards.last_failure
        refuse_failures(metrics, most, step=step, example=example)
        if self._remote is not None:
            self._remote.refuse_gap(metrics.get(LOGPROB_GAP, 0.0), step=step)

    def weight(self, micro_batch: MicroBatch) -> int:
        """Tokens of answers, or answers, as the loss is a mean over them."""
        is_over_tokens = self.config.loss.type in TOKEN_MEANS
        return num_answer_tokens(micro_batch) if is_over_tokens else len(micro_batch.row_ids)

    def tensors(self, micro_batch: MicroBatch, device: torch.device) -> Mapping[str, Shaped[Tensor, "..."]]:
        """See `answer_arrays`; of prompts, to be answered, `prompt_arrays`."""
        arrays = (answer_arrays if is_of_answers(micro_batch) else prompt_arrays)(micro_batch)
        return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}

    def blank(self, device: torch.device) -> Mapping[str, Shaped[Tensor, "..."]]:
        """One answer of one token to a prompt of one."""
        return {
            "input_ids": torch.zeros(1, 2, dtype=torch.int64, device=device),
            "learned": torch.ones(1, 1, dtype=torch.bool, device=device),
            "sampler_logprobs": torch.zeros(1, 1, device=device),
            "advantages": torch.zeros(1, device=device),
        }

    def loss(self, model: nn.Module, tensors: Mapping[str, Shaped[Tensor, "..."]], helpers: Helpers) -> Loss:
        """The loss of the answers."""
        learned, scores = tensors["learned"], self._scores(model, tensors)
        logprobs, num_tokens = scores.logprobs, learned.sum()
        first, drawn = tensors.get(OLD, logprobs.detach()), tensors["sampler_logprobs"]
        old = drawn if self.staleness else first
        policy = policy_loss(logprobs, old, tensors["advantages"], learned, self.config.loss)
        of_tokens = policy.of_tokens
        gaps = first - drawn
        metrics = {
            "entropy": MetricSum(scores.entropies.detach().sum(), num_tokens),
            self._gap_name: MetricSum((gaps.abs() * learned).sum(), num_tokens),
        }
        if self._may_clip:
            metrics["clipped"] = MetricSum((policy.is_clipped & learned).sum(), num_tokens)
        if self.config.kl:
            with torch.no_grad(), adapters_off(model) if self._is_base else nullcontext():
                said = self._scores(helpers.get(REFERENCE, model), tensors).logprobs
            apart = divergences(logprobs, old, said)
            of_tokens = of_tokens + self.config.kl * apart
            metrics["kl"] = MetricSum((apart.detach() * learned).sum(), num_tokens)
        if self._truncated:
            weights = truncated_weights(gaps, self._truncated)
            of_tokens = of_tokens * weights
            metrics["weighed"] = MetricSum(((weights != 1) & learned).sum(), num_tokens)
        longest = self.config.sampling.max_tokens
        return Loss(summed(of_tokens, learned, self.config.loss, max_tokens=longest), metrics, {OLD: first})

    def predictions(
        self, model: nn.Module, tensors: Mapping[str, Shaped[Tensor, "..."]]
    ) -> Mapping[str, Float64[Tensor, "row"]]:
        """What one answer to each prompt earns, how long it is, and how far from what the reference would say;
        nothing of a blank."""
        if "items" not in tensors:
            return {}
        rows, judges = rows_behind(tensors), self._judges
        # The same luck at every step: what differs between two evaluations is the model.
        prompts = [Prompt(row.tokens, derive_key("validation", row.row_id)) for row in rows]
        own = self.config.validation_temperature
        sampling = self._sampling if own is None else self._sampling.model_copy(update={"temperature": own})
        answers = self._answered(model, prompts, sampling)
        helpers = {name: each.to(tensors["input_ids"].device) for name, each in judges.networks().items()}
        earned = _numbers(self._graded(judges, rows, answers, helpers))
        cut = torch.tensor([answer.reason == "length" for answer in answers], dtype=torch.float64)
        lengths = torch.tensor([len(answer.tokens) for answer in answers], dtype=torch.float64)
        found = {REWARD.name: torch.from_numpy(earned), TRUNCATED.name: cut, LENGTH.name: lengths}
        return found | ({KL.name: self._apart(model, rows, answers)} if self.config.kl else {})

    def save_portable(self, model: nn.Module, folder: Path, leaving: Leaving) -> None:
        """See `ExportableMethod`."""
        assert isinstance(model, CausalNetwork), type(model)
        save_model(model.network, self.config.model, folder, leaving)

    @property
    def _gap_name(self) -> str:
        return DRIFT if self.staleness else LOGPROB_GAP

    @property
    def _may_clip(self) -> bool:
        """What learns may differ from what it is held against."""
        return self.updates_per_rollout > 1 or self.staleness > 0

    @property
    def _is_base(self) -> bool:
        """The reference is the model with its adapters switched off."""
        return self.config.reference.path is None and self.config.model.lora is not None

    @cached_property
    def _reference(self) -> nn.Module:
        path = self.config.reference.path or self.config.model.path
        return CausalNetwork(PretrainedCausalConfig(type="pretrained", path=path))

    @cached_property
    def _rewards(self) -> Rewards:
        return Rewards(self.config.rewards, group_size=self.config.group_size, endpoint=self.config.judge)

    @cached_property
    def _judges(self) -> Rewards:
        held_out = self.config.held_out
        key = "method.held_out" if held_out else "method.rewards"
        return Rewards(held_out or self.config.rewards, group_size=1, key=key, endpoint=self.config.judge)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return load_tokenizer(checkpoint_path(self.config.model.path))

    @cached_property
    def _ends(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return frozenset(self.config.end_ids())

    @property
    def _sampling(self) -> Sampling:
        return Sampling(**self.config.sampling.model_dump())

    def _scores(self, model: nn.Module, tensors: Mapping[str, Shaped[Tensor, "..."]]) -> TokenScores:
        scores: TokenScores = model(
            tensors["input_ids"], None, tensors["learned"], temperature=self.config.sampling.temperature
        )
        return scores

    def _groups(
        self,
        model: nn.Module,
        rows: Sequence[PromptRow],
        helpers: Helpers,
        *,
        step: int,
        seed: int,
        book: GradeBook | None,
        is_stopping: Callable[[], bool] = lambda: False,
        enter_phase: EnterPhase = lambda phase: None,
    ) -> tuple[list[AnswerGroup], list[Graded]]:
        """The answers to each prompt and what they earned, all made together; and the grade of each answer."""
        size = self.config.group_size
        enter_phase("generation")
        give_sign = partial(enter_phase, "generation")
        answers = self._drawn(model, rows, step, seed, book, is_stopping, give_sign)
        enter_phase("reward")
        if is_stopping():  # graders may take as long as the model
            raise GenerationAbandonedError
        judged = None
        if book is not None:
            judged = JudgedGroups(step, [row.row_id for row in rows], list(map(rollout_digest, answers)), book)
        of_answers = [row for row in rows for _ in range(size)]
        graded = self._graded(self._rewards, of_answers, answers, helpers, judged)
        groups = [
            grouped(row, answers[at : at + size], _numbers(graded[at : at + size]), self.config)
            for row, at in zip(rows, range(0, len(answers), size), strict=True)
        ]
        return groups, graded

    @cached_property
    def _remote(self) -> RemoteAnswers | None:
        """Whom answers to learn from are asked from, if not this process."""
        config = self.config
        if not isinstance(config.sampler, RemoteSampler):
            return None
        size, ends = config.group_size, self._ends
        return RemoteAnswers(config.sampler, config.model, self._sampling, group_size=size, ends=ends)

    @property
    def _truncated(self) -> LogprobGap | None:
        """How the loss is corrected, if it is."""
        sampler = self.config.sampler
        gap = sampler.logprob_gap if isinstance(sampler, RemoteSampler) else None
        return gap if gap is not None and gap.on_excess == "truncate" else None

    def _drawn(
        self,
        model: nn.Module,
        rows: Sequence[PromptRow],
        step: int,
        seed: int,
        book: GradeBook | None,
        is_stopping: Callable[[], bool],
        give_sign: Callable[[], None],
    ) -> list[Rollout]:
        """`group_size` answers to each row, to learn from."""
        if self._remote is None:
            prompts = prompts_of(rows, self.config.group_size, seed=seed)
            return self._answered(model, prompts, self._sampling, is_stopping)
        assert isinstance(model, CausalNetwork) and book is not None, "what others say is kept"
        return self._remote.of(
            model, rows, step=step, seed=seed, book=book, is_stopping=is_stopping, give_sign=give_sign
        )

    def _apart(
        self, model: nn.Module, rows: Sequence[PromptRow], answers: Sequence[Rollout]
    ) -> Float64[Tensor, "row"]:
        """The divergence from the reference that each answer shows, per token."""
        taught = [TaughtAnswer(row, each, 0.0) for row, each in zip(rows, answers, strict=True)]
        [batch] = micro_batches(taught, None)
        tensors = self.tensors(batch, next(model.parameters()).device)
        own, learned = self._scores(model, tensors).logprobs, tensors["learned"]
        with adapters_off(model) if self._is_base else nullcontext():
            asked = model if self._is_base else self._reference.to(own.device).eval()
            said = self._scores(asked, tensors).logprobs
        of_tokens = (divergences(own, own, said) * learned).double()
        return (of_tokens.sum(dim=1) / learned.sum(dim=1)).cpu()

    def _answered(
        self,
        model: nn.Module,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> list[Rollout]:
        if not prompts:
            return []
        return self._generator(model).generate(prompts, sampling, is_stopping)

    def _generator(self, model: nn.Module) -> Generator:
        """Whom the model is asked through."""
        assert isinstance(model, CausalNetwork), type(model)
        if self._engine is None or self._engine[0] is not model:
            self._engine = model, Generator(model.network, ends=self._ends, tokenizer=self._tokenizer)
        return self._engine[1]

    def _graded(
        self,
        rewards: Rewards,
        rows: Sequence[PromptRow],
        answers: Sequence[Rollout],
        helpers: Helpers,
        judged: JudgedGroups | None = None,
    ) -> list[Graded]:
        """Grades of `answers[i]` to `rows[i]`."""
        sequences = [np.concatenate([row.tokens, each.tokens]) for row, each in zip(rows, answers, strict=True)]
        texts = list(map(self._text, answers))
        return rewards.grade([row.item for row in rows], texts, sequences, helpers, judged)

    def _text(self, answer: Rollout) -> str:
        """What graders read: without the token, or the words, that ended it."""
        return CompletionText(self._tokenizer, self.config.sampling.stop, self._ends).of(answer.tokens.tolist())


def _numbers(graded: Sequence[Graded]) -> Float64[np.ndarray, "answer"]:
    """NaN where a grader failed."""
    return np.array([np.nan if each.reward is None else each.reward for each in graded], np.float64)
