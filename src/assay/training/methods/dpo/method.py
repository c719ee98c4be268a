"""Connects direct preference optimization to the trainer's protocol."""

from collections.abc import Mapping
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from assay.base.shapes import Float, Shaped
from assay.data.dataset.columns import REFERENCE_LOGPROBS
from assay.data.loader.batch import MicroBatch
from assay.data.loader.line import in_slots, scored_arrays
from assay.models.causal_config import PretrainedCausalConfig
from assay.models.exporting import ExportOptions, save_model
from assay.models.lora import adapters_off
from assay.models.pairs import pairs_of
from assay.models.token_scores import CausalNetwork, line_of, row_sums, sequence_logprobs
from assay.records.evaluation import ACCURACY, CHOSEN_REWARD, REJECTED_REWARD
from assay.records.exported_model import ModelForm
from assay.training.methods.dpo.config import CHOSEN_LOGPROB, LOSS, MARGIN, REJECTED_LOGPROB, ColumnReference, DpoConfig
from assay.training.methods.dpo.loss import pair_losses
from assay.training.numerics import MetricSum
from assay.training.trainer.method import FrozenModels, Loss, Tensors

REFERENCE = "reference"


class Scores(NamedTuple):
    """Scores of preference pairs."""

    losses: Float[Tensor, "pair"]
    chosen_rewards: Float[Tensor, "pair"]
    """beta times the log-ratio of model and reference: a sum over tokens, or a mean, as the loss takes it."""
    rejected_rewards: Float[Tensor, "pair"]
    chosen_logprobs: Float[Tensor, "pair"]
    """Log-probabilities of whole completions."""
    rejected_logprobs: Float[Tensor, "pair"]


class DpoMethod:
    """Trains a language model to prefer chosen completions."""

    form: ModelForm = "language_model"

    metrics = ("accuracy", "margin", "chosen_reward", "rejected_reward", "chosen_logprob", "rejected_logprob")
    """Metrics that are logged with each step. A `chosen_reward` below 0 is displacement: the chosen completions
    became less likely, too."""

    def __init__(self, config: DpoConfig) -> None:
        self.config = config

    def build_model(self) -> nn.Module:
        return CausalNetwork(self.config.model)

    def build_frozen_models(self) -> FrozenModels:
        """Return the reference, unless its logprobs are columns or it is the model without its adapters."""
        if isinstance(self.config.reference, ColumnReference) or self._is_base:
            return {}
        return {REFERENCE: self._reference}

    def weight(self, micro_batch: MicroBatch) -> int:
        return len(micro_batch.row_ids)

    def tensors(self, micro_batch: MicroBatch, device: torch.device) -> Tensors:
        """Return `input_ids` [2 pair, token], `scored` [2 pair, token - 1]; `reference` [2 pair] if columns hold it.

        A line has the arrays of `scored_arrays`; `is_pair` [pair] is False for pairs that the line does not hold.
        """
        pairs, line = pairs_of(micro_batch), micro_batch.line
        arrays = {"input_ids": pairs.input_ids, "scored": pairs.in_completion()}
        if line is not None:
            slots = pairs.slots(line)
            arrays = scored_arrays(pairs.input_ids, pairs.lengths, arrays["scored"], line, slots=slots)
            arrays["is_pair"] = np.arange(line.rows) < len(micro_batch.row_ids)
        if isinstance(self.config.reference, ColumnReference):
            columns = [micro_batch.columns[name].to_numpy(zero_copy_only=False) for name in REFERENCE_LOGPROBS]
            logprobs = np.concatenate(columns).astype(np.float32)
            arrays[REFERENCE] = logprobs if line is None else in_slots(logprobs, slots, line.num_slots)
        return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}

    def blank(self, device: torch.device) -> Tensors:
        return {
            "input_ids": torch.zeros(2, 2, dtype=torch.int64, device=device),
            "scored": torch.ones(2, 1, dtype=torch.bool, device=device),
            REFERENCE: torch.zeros(2, device=device),
        }

    def loss(self, model: nn.Module, tensors: Tensors, frozen_models: FrozenModels) -> Loss:
        scores = self._scores(model, tensors, frozen_models.get(REFERENCE))
        chosen, rejected = scores.chosen_rewards.detach(), scores.rejected_rewards.detach()
        values = {
            "accuracy": chosen > rejected,
            "margin": chosen - rejected,
            "chosen_reward": chosen,
            "rejected_reward": rejected,
            "chosen_logprob": scores.chosen_logprobs.detach(),
            "rejected_logprob": scores.rejected_logprobs.detach(),
        }
        is_pair = tensors.get("is_pair")
        if is_pair is None:
            metrics = {name: MetricSum(of_pairs.sum(), len(chosen)) for name, of_pairs in values.items()}
            return Loss(scores.losses.sum(), metrics)
        num_pairs = is_pair.sum()
        metrics = {name: MetricSum((of_pairs * is_pair).sum(), num_pairs) for name, of_pairs in values.items()}
        return Loss((scores.losses * is_pair).sum(), metrics)

    def predictions(self, model: nn.Module, tensors: Tensors) -> Mapping[str, Shaped[Tensor, "pair"]]:
        frozen_models = {
            name: build_frozen_model.to(tensors["input_ids"].device).eval()
            for name, build_frozen_model in self.build_frozen_models().items()
        }
        scores = self._scores(model, tensors, frozen_models.get(REFERENCE))
        chosen, rejected = scores.chosen_rewards.double(), scores.rejected_rewards.double()
        return {
            ACCURACY.name: (chosen > rejected).double(),
            LOSS.name: scores.losses.double(),
            MARGIN.name: chosen - rejected,
            CHOSEN_LOGPROB.name: scores.chosen_logprobs.double(),
            REJECTED_LOGPROB.name: scores.rejected_logprobs.double(),
            CHOSEN_REWARD.name: chosen,
            REJECTED_REWARD.name: rejected,
        }

    def save_exported(self, model: nn.Module, folder: Path, options: ExportOptions) -> None:
        assert isinstance(model, CausalNetwork), type(model)
        save_model(model.network, self.config.model, folder, options)

    @property
    def _is_base(self) -> bool:
        """True if the reference is the model with its adapters disabled."""
        reference = self.config.reference
        is_frozen = not isinstance(reference, ColumnReference) and reference.path is None
        return is_frozen and self.config.model.lora is not None

    @cached_property
    def _reference(self) -> nn.Module:
        reference = self.config.reference
        assert not isinstance(reference, ColumnReference)
        if reference.path is None:
            return CausalNetwork(self.config.model)
        return CausalNetwork(PretrainedCausalConfig(type="pretrained", path=reference.path))

    def _scores(self, model: nn.Module, tensors: Tensors, reference: nn.Module | None) -> Scores:
        if isinstance(self.config.reference, ColumnReference):
            reference_logprobs = tensors[REFERENCE]
        else:
            with torch.no_grad(), adapters_off(model) if self._is_base else nullcontext():
                reference_logprobs = _logprobs(reference or model, tensors)
        logprobs = _logprobs(model, tensors)
        num_scored = tensors["num_scored"] if "num_scored" in tensors else tensors["scored"].sum(dim=1)
        # At least 1: a row of one token has nothing to score, and its sums are zero.
        num_tokens = num_scored.clamp(min=1)
        log_ratios = logprobs - reference_logprobs
        if self.config.loss.type in ("ipo", "sigmoid_norm"):
            log_ratios = log_ratios / num_tokens
        chosen, rejected = log_ratios.chunk(2)
        losses = pair_losses(chosen - rejected, self.config.loss)
        if self.config.sft_weight:
            surprise = -logprobs.chunk(2)[0] / num_tokens.chunk(2)[0]
            losses = losses + self.config.sft_weight * surprise
        beta = self.config.loss.beta
        return Scores(losses, beta * chosen, beta * rejected, *logprobs.chunk(2))


def _logprobs(model: nn.Module, tensors: Tensors) -> Float[Tensor, "sequence"]:
    line = line_of(tensors)
    if line is None:
        return sequence_logprobs(model, tensors["input_ids"], tensors["scored"])
    scores = model(tensors["input_ids"], tensors["position_ids"], tensors["scored"], line=line)
    return row_sums(scores.logprobs[0], tensors["row_of"], len(tensors["num_scored"]))
