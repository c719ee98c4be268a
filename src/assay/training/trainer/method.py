"""What a method must say for the trainer to train it: its model, its tensors, its loss.

A loss is a *sum*, and so is every metric beside it. The trainer adds the sums of all lanes in lane order and
divides once, by the step's weight: rows for a classifier, trained tokens for a language model, pairs for
preferences. So no batch size, packing or world size can change the mean.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from assay.base.shapes import Float, Float32, Shaped
from assay.data.loader.batch import LaneShare, MicroBatch
from assay.models.exporting import Leaving
from assay.records.exported_model import ModelForm
from assay.records.journal import JournaledGroup
from assay.records.phase import Phase
from assay.training.checkpoint.grade_book import GradeBook

Helpers = Mapping[str, nn.Module]
"""Frozen networks that a loss asks besides the one that is trained, by name."""
EnterPhase = Callable[[Phase], None]
"""Told what the device does from now on."""


class MetricSum(NamedTuple):
    """What a micro-batch adds to a metric: the step's value is the sum of the sums over that of the weights."""

    sum: Shaped[Tensor, ""]
    """Nobody asks its gradient."""
    weight: Shaped[Tensor, ""] | float


class Loss(NamedTuple):
    """What a micro-batch adds to a step."""

    sum: Float32[Tensor, ""]
    """Over whatever `Method.weight` counts."""
    metrics: Mapping[str, MetricSum]
    """One for each name in `Method.metrics`, but for those that come with rollouts."""
    kept: Mapping[str, Shaped[Tensor, "..."]] = MappingProxyType({})
    """What later updates of the same step are given among the micro-batch's tensors."""


class Method(Protocol):
    """Batch to loss."""

    @property
    def metrics(self) -> Sequence[str]:
        """Names of what `loss` reports beside the loss itself, written down with every step."""
        ...

    def build_model(self) -> nn.Module:
        """The model with its starting weights; the caller has seeded torch."""
        ...

    def build_helpers(self) -> Helpers:
        """Networks that are never trained and in no commit, whole on every rank: a reference model, say."""
        ...

    def weight(self, micro_batch: MicroBatch) -> int:
        """What the micro-batch counts in the step's mean; known before any forward pass."""
        ...

    def tensors(self, micro_batch: MicroBatch, device: torch.device) -> Mapping[str, Shaped[Tensor, "..."]]:
        """What the model needs of a micro-batch, on the device."""
        ...

    def blank(self, device: torch.device) -> Mapping[str, Shaped[Tensor, "..."]]:
        """One row that means nothing: what a lane without rows computes, with weight zero."""
        ...

    def loss(self, model: nn.Module, tensors: Mapping[str, Shaped[Tensor, "..."]], helpers: Helpers) -> Loss:
        """The loss of the rows behind `tensors`."""
        ...


class RolledOut(NamedTuple):
    """What a lane's prompts became."""

    lane: LaneShare
    """What the lane learns from, in the place of its rows."""
    metrics: Mapping[str, MetricSum] = MappingProxyType({})
    """Those that no loss knows, for what is learned from need not be all."""
    digest: int = 0
    """That of all that was made (`combined_digest`)."""
    journal: tuple[JournaledGroup, ...] = ()
    """What became of each of its prompts; only where rows are prompts."""


class RolloutAlone(NamedTuple):
    """An answer to a prompt, made by itself, and what became of it among those of its lane."""

    prompt: str
    answer: str
    """What graders read."""
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    ended_by: Literal["stop", "length"]
    reward: float | None
    failure: str | None
    """Why there is no reward."""
    group_rewards: tuple[float | None, ...]
    """Those of all answers to the prompt."""
    advantage: float | None
    outcome: str
    """One word, and"""
    because: str
    """in a sentence: whether it is learned from."""
    digest: int
    """That of tokens and log-probabilities, 64 bits."""
    digest_beside: int
    """Likewise, made beside the others of the lane."""


class PredictingMethod(Method, Protocol):
    """A method whose model can be asked about rows: what runs are evaluated and compared by."""

    def predictions(
        self, model: nn.Module, tensors: Mapping[str, Shaped[Tensor, "..."]]
    ) -> Mapping[str, Shaped[Tensor, "..."]]:
        """Columns by name, one value a row, as the configuration's `predictions` says; in evaluation mode."""
        ...


@runtime_checkable
class RolloutMethod(PredictingMethod, Protocol):
    """A method whose rows are prompts: what it learns from the model says itself, before the losses."""

    @property
    def updates_per_rollout(self) -> int:
        """Updates that are made from what was said once."""
        ...

    @property
    def staleness(self) -> int:
        """Steps by which what is learned was said earlier than it could have been."""
        ...

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
        """What each lane is to learn from in update number `step`; `model` has all of its weights.

        A function of weights, rows and `seed` (one for each step): a lane comes out with the same bits alone
        and beside others, for it is made again wherever it is checked. `max_tokens`: as in `LoaderConfig`.
        What others answer meanwhile is kept in the `book`, and taken from there.

        `is_stopping` is asked on the way: then it raises a `GenerationAbandonedError`, and leaves nothing.
        `enter_phase` is told when answers are made, and when they are graded.
        """
        ...

    @property
    def rollout_costs(self) -> Mapping[str, float]:
        """What the last rollouts cost this process, by metric name: seconds, tokens a second, shares."""
        ...

    @property
    def settled_by(self) -> Sequence[str]:
        """Metrics of rollouts whose means over the whole step `settled` wants; none: it is not asked."""
        ...

    def settled(self, lane: LaneShare, totals: Mapping[str, float]) -> LaneShare:
        """The lane with what only all of the step's rollouts together say; `totals`: those means."""
        ...

    def check_step(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Raise where a step, by its metrics, must not become an update; all ranks see the same numbers."""
        ...

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
        """One of the answers that `rollouts` makes for the lane, made again by itself."""
        ...


@runtime_checkable
class ExportableMethod(PredictingMethod, Protocol):
    """A method whose model leaves as files that other tools load."""

    form: ModelForm
    """As what they load it."""

    def save_portable(self, model: nn.Module, folder: Path, leaving: Leaving) -> None:
        """Write weights as safetensors, `config.json`, and the module that reads them where none of
        transformers does. The model is not used any more."""
        ...


@runtime_checkable
class PortableMethod(ExportableMethod, Protocol):
    """Likewise, and its model answers for rows without a label."""

    def answers(
        self, model: nn.Module, tensors: Mapping[str, Shaped[Tensor, "..."]]
    ) -> Mapping[str, list[Any]]:
        """Columns by name, one value a row, of rows without a label: `tensors` has none. In evaluation mode."""
        ...

    def load_portable(self, folder: Path) -> nn.Module:
        """The model behind such files, as `predictions` and `answers` take it; no code of the folder is run."""
        ...


@runtime_checkable
class EmbeddingMethod(PortableMethod, Protocol):
    """Likewise, and its model has a vector for each row."""

    def embeddings(
        self, model: nn.Module, tensors: Mapping[str, Shaped[Tensor, "..."]]
    ) -> Float[Tensor, "row width"]:
        """What the head reads of rows without a label, before metadata. In evaluation mode."""
        ...
