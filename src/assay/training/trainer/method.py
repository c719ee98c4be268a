"""The protocol between the trainer and a method: model, tensors, loss.

A loss is a *sum*, and so is each metric. The trainer adds the sums of all lanes in lane order and divides once
by the step's weight: rows for a classifier, trained tokens for a language model, pairs for preferences.
Therefore no batch size, packing or world size changes the mean.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from assay.base.shapes import Float, Float32, Shaped
from assay.data.loader.batch import LaneShare, MicroBatch
from assay.models.exporting import ExportOptions
from assay.records.exported_model import ModelForm
from assay.records.phase import Phase
from assay.records.rollout_log import LoggedGroup
from assay.training.checkpoint.reward_cache import RewardCache

FrozenModels = Mapping[str, nn.Module]
"""Frozen models that a loss reads, by name."""
EnterPhase = Callable[[Phase], None]
"""Called when the device enters another phase."""


class MetricSum(NamedTuple):
    """A micro-batch's contribution to a metric: the step's value is the sum of sums over the sum of weights."""

    sum: Shaped[Tensor, ""]
    weight: Shaped[Tensor, ""] | float


class Loss(NamedTuple):
    """A micro-batch's contribution to a step."""

    sum: Float32[Tensor, ""]
    """Sum over the units that `Method.weight` counts."""
    metrics: Mapping[str, MetricSum]
    """One for each name in `Method.metrics` that rollouts do not report."""
    carried: Mapping[str, Shaped[Tensor, "..."]] = MappingProxyType({})
    """Tensors that later updates of the same step receive with the micro-batch."""


class Method(Protocol):
    """A training method: maps a batch to a loss."""

    @property
    def metrics(self) -> Sequence[str]:
        """Names of the metrics that are logged with each step."""
        ...

    def build_model(self) -> nn.Module:
        """Return the model with its initial weights; the caller has seeded torch."""
        ...

    def build_frozen_models(self) -> FrozenModels:
        """Return the models that are never trained and not committed, unsharded on each rank, e.g. a reference
        model."""
        ...

    def weight(self, micro_batch: MicroBatch) -> int:
        """Return the micro-batch's weight in the step's mean; called before the forward pass."""
        ...

    def tensors(self, micro_batch: MicroBatch, device: torch.device) -> Mapping[str, Shaped[Tensor, "..."]]:
        """Return the micro-batch's tensors on the device."""
        ...

    def blank(self, device: torch.device) -> Mapping[str, Shaped[Tensor, "..."]]:
        """Return one arbitrary row: a lane without rows computes it with weight zero."""
        ...

    def loss(self, model: nn.Module, tensors: Mapping[str, Shaped[Tensor, "..."]], frozen_models: FrozenModels) -> Loss:
        """Return the loss of the rows in `tensors`."""
        ...


class LaneSamples(NamedTuple):
    """The training samples of one lane in one step."""

    lane: LaneShare
    """The lane's micro-batches: dataset rows, or completions for RL methods."""
    metrics: Mapping[str, MetricSum] = MappingProxyType({})
    """Metrics over all rollouts, of which the samples may be a part."""
    digest: int = 0
    """Digest of all rollouts (`combined_digest`); 0 without rollouts."""
    rollout_log: tuple[LoggedGroup, ...] = ()
    """One entry for each prompt; empty without rollouts."""


class ReplayedRollout(NamedTuple):
    """One completion, generated again alone, with its grade and outcome."""

    prompt: str
    completion: str
    """The text that graders read."""
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    ended_by: Literal["stop", "length"]
    reward: float | None
    failure: str | None
    """Reason why there is no reward."""
    group_rewards: tuple[float | None, ...]
    """Rewards of all completions of the prompt."""
    advantage: float | None
    outcome: str
    because: str
    """A sentence that explains the outcome."""
    digest: int
    """64-bit digest of tokens and log-probabilities."""
    batched_digest: int
    """The same digest as generated within the batch."""


class PredictingMethod(Method, Protocol):
    """A method whose model predicts on rows: the basis of evaluation and comparison."""

    def predictions(
        self, model: nn.Module, tensors: Mapping[str, Shaped[Tensor, "..."]]
    ) -> Mapping[str, Shaped[Tensor, "..."]]:
        """Return columns with one value a row, as `MethodConfig.predictions` declares; the model is in
        evaluation mode."""
        ...


@runtime_checkable
class RolloutMethod(PredictingMethod, Protocol):
    """A method whose rows are prompts: the model generates the training samples."""

    @property
    def updates_per_rollout(self) -> int:
        """Optimizer updates from one step's rollouts."""
        ...

    @property
    def staleness(self) -> int:
        """Steps between generating rollouts and training on them."""
        ...

    def rollouts(
        self,
        model: nn.Module,
        lanes: Sequence[LaneShare],
        frozen_models: FrozenModels,
        *,
        step: int,
        seed: int,
        max_tokens: int | None,
        reward_cache: RewardCache | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
        enter_phase: EnterPhase = lambda phase: None,
    ) -> list[LaneSamples]:
        """Generate and grade rollouts for optimizer step `step`; return the training samples of each lane.

        The result is a function of weights, rows and `seed` (one for each step): a lane has the same bits alone and
        beside others, because checks and replays recompute single lanes. `model` has all weights. `max_tokens` is
        `LoaderConfig.max_micro_batch_tokens`. Grades of external judges are stored in `reward_cache` and read from it.

        If `is_stopping()` becomes true, raises `GenerationCancelledError` and changes nothing. `enter_phase` is called
        when generation and grading begin.
        """
        ...

    @property
    def rollout_costs(self) -> Mapping[str, float]:
        """Costs of the last rollouts in this process, by metric name: seconds, tokens per second, shares."""
        ...

    @property
    def step_statistics(self) -> Sequence[str]:
        """Metrics of rollouts whose means over the step `normalize_advantages` needs; empty if it is not needed."""
        ...

    def normalize_advantages(self, lane: LaneShare, totals: Mapping[str, float]) -> LaneShare:
        """Return the lane with advantages normalized by the step's means (`totals`)."""
        ...

    def check_step(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Raise if a step with these metrics must not become an update; all ranks see the same numbers."""
        ...

    def rollout(
        self,
        model: nn.Module,
        lane: LaneShare,
        frozen_models: FrozenModels,
        *,
        row_id: int,
        sample: int,
        step: int,
        seed: int,
        reward_cache: RewardCache | None = None,
    ) -> ReplayedRollout:
        """Generate one of the completions of `rollouts` again, alone."""
        ...


@runtime_checkable
class ExportableMethod(PredictingMethod, Protocol):
    """A method whose model can be exported as files that other tools load."""

    form: ModelForm
    """The kind of model that other tools load."""

    def save_exported(self, model: nn.Module, folder: Path, options: ExportOptions) -> None:
        """Write weights as safetensors, `config.json`, and the model code if transformers has no such class.
        The model must not be used afterwards."""
        ...


@runtime_checkable
class LoadableMethod(ExportableMethod, Protocol):
    """A method whose exported model can be loaded again and predicts on unlabeled rows."""

    def predict(self, model: nn.Module, tensors: Mapping[str, Shaped[Tensor, "..."]]) -> Mapping[str, list[Any]]:
        """Return columns with one value a row, for rows without a label; the model is in evaluation mode."""
        ...

    def load_exported(self, folder: Path) -> nn.Module:
        """Load an exported model for `predictions` and `predict`; no code of the folder is run."""
        ...


@runtime_checkable
class EmbeddingMethod(LoadableMethod, Protocol):
    """A method whose model computes an embedding of each row."""

    def embeddings(self, model: nn.Module, tensors: Mapping[str, Shaped[Tensor, "..."]]) -> Float[Tensor, "row width"]:
        """Return the head's input without metadata, for unlabeled rows; the model is in evaluation mode."""
        ...
