"""The part of a method's configuration that code without torch reads.

    recipe --> MethodConfig --> does the dataset fit? how large is the model? which predictions will it make?

Checks, plans and evaluations use this interface and do not know which method it is.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from assay.base.config import FrozenConfig
from assay.data.dataset.columns import PROMPT_TOKENS, sequences_of
from assay.data.loader.batch import MicroBatch
from assay.data.loader.config import LoaderConfig
from assay.models.causal_config import CausalConfig, model_size
from assay.models.config import ModelSize
from assay.models.flops import ModelFlops, causal_flops
from assay.records.dataset import DatasetManifest
from assay.records.evaluation import ACCURACY, AUC, LOG_LOSS, Metric
from assay.records.rollout_log import GroupRecord
from assay.training.checkpoint.named_commit import CommitName


class BinaryPredictions(NamedTuple):
    """Columns `label` (0 or 1) and `probability` (of label 1); runs are compared by AUC."""

    @property
    def columns(self) -> tuple[str, ...]:
        return ("label", "probability")

    @property
    def metric(self) -> Metric:
        """Selects the best commits and compares runs."""
        return AUC


class RowScores(NamedTuple):
    """One column for each metric with the value of each row; runs are compared by the mean of the first."""

    metrics: tuple[Metric, ...]
    counted: str | None = None
    """Another column: the weight of a row (its tokens) in means over tokens instead of rows."""
    is_sampled: bool = False
    """Scores are of sampled and graded completions: the standard error of the mean is recorded for the warnings
    about reward hacking."""
    ranges: Mapping[str, tuple[float, float]] = {}
    """Metric name -> smallest and largest score of a row, if they are known."""

    @property
    def columns(self) -> tuple[str, ...]:
        return (*(metric.name for metric in self.metrics), *([self.counted] if self.counted else []))

    @property
    def metric(self) -> Metric:
        """Selects the best commits and compares runs."""
        return self.metrics[0]


class ClassPredictions(NamedTuple):
    """Columns `predicted` (an index into `names`), `accuracy` and `log_loss`; runs are compared by accuracy."""

    names: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return ("predicted", *(metric.name for metric in self.metrics))

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (ACCURACY, LOG_LOSS)

    @property
    def ranges(self) -> Mapping[str, tuple[float, float]]:
        return {LOG_LOSS.name: (0.0, math.inf)}

    @property
    def metric(self) -> Metric:
        return ACCURACY


class NumberPredictions(NamedTuple):
    """Columns `prediction`, `absolute_error` and `squared_error`; runs are compared by the absolute error."""

    unit: str
    """Unit of the labels; empty if it is not configured."""

    @property
    def columns(self) -> tuple[str, ...]:
        return ("prediction", *(metric.name for metric in self.metrics))

    @property
    def metrics(self) -> tuple[Metric, ...]:
        unit = self.unit or "units of the label"
        return (
            Metric(name="absolute_error", unit=unit, higher_is_better=False),
            Metric(name="squared_error", unit=f"{unit} squared", higher_is_better=False),
        )

    @property
    def ranges(self) -> Mapping[str, tuple[float, float]]:
        return {metric.name: (0.0, math.inf) for metric in self.metrics}

    @property
    def metric(self) -> Metric:
        return self.metrics[0]


Predictions = BinaryPredictions | RowScores | ClassPredictions | NumberPredictions


class MethodConfig(FrozenConfig, ABC):
    """Base of the methods' configurations. `type`, a literal, is the name of the method's folder."""

    type: str

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Dataset columns that the method reads."""

    @property
    @abstractmethod
    def predictions(self) -> Predictions:
        """The predictions for each validation row."""

    @property
    def coded(self) -> str | None:
        """What the training loss is the code length of, in nats (`labels`, `preferences`); None if it is no -log p."""
        return None

    @property
    def runs(self) -> Mapping[str, CommitName]:
        """Recipe key -> commit of another run that training reads."""
        return {}

    @property
    def takes_packed_rows(self) -> bool:
        """True if several rows may share a sequence."""
        return False

    @property
    def takes_lines(self) -> bool:
        """True if a micro-batch may be a line (see `LineLayout`)."""
        return False

    @property
    def may_compile(self) -> bool:
        """True if `trainer.compile` is known to be exact for the model's layers."""
        return False

    @property
    def completions_per_prompt(self) -> int | None:
        """Completions for each prompt; None if rows are no prompts."""
        return None

    @property
    def window_tokens(self) -> int | None:
        """Longest sequence of the model, completion included; None if it generates no text."""
        return None

    @abstractmethod
    def check_dataset(self, manifest: DatasetManifest) -> None:
        """Raise `ConfigError` for rows that the model cannot take; the columns are known to exist."""

    def end_ids(self) -> tuple[int, ...]:
        """Return the tokens that end a completion in training; empty if the method samples nothing."""
        return ()

    def label_problem(self, label: str | float) -> str | None:  # noqa: ARG002
        """Return why a row's label is not one that the model learns, or None.

        `check_dataset` checks all rows; this is for callers that can still name the row.
        """
        return None

    def check_batches(self, loader: LoaderConfig) -> None:
        """Raise `ConfigError` if a step has fewer rows than the method needs."""

    def check_services(self, manifest: DatasetManifest) -> None:
        """Raise if a service that training calls does not respond or has wrong settings, or if graders' code
        cannot be sandboxed on this machine. Called before the run is created."""

    def rollout_log_problems(self, groups: Sequence[GroupRecord]) -> Iterator[str]:  # noqa: ARG002
        """Yield inconsistencies in the rollout log of one lane in one step."""
        return iter(())

    @abstractmethod
    def num_parameters(self) -> int | None:
        """Return the number of trained parameters; None if only a folder of weights knows."""

    def training_sequences(self, rows: int, longest: int) -> tuple[int, int]:
        """Return how many sequences a lane of `rows` rows with at most `longest` tokens trains on, and the
        tokens of the longest."""
        # Both sequences of a pair are as wide as the longer one.
        return rows, longest * len(sequences_of(self.columns))

    @property
    def updates_per_step(self) -> int:
        """Updates of one step from the same rows; each exchanges gradients."""
        return 1

    def sampling_numbers(self, rows: int, longest: int) -> int:  # noqa: ARG002
        """Return the numbers held in memory while completions of `rows` prompts are sampled; 0 if none are."""
        return 0

    def model_flops(self) -> ModelFlops | None:
        """Return what the FLOPs of the model follow from; None if they are unknown."""
        return None

    @property
    def num_references(self) -> int:
        """Frozen models, or the model without its adapters, that score each sequence in training."""
        return 0

    def num_scored(self, batch: MicroBatch, weight: int) -> int:  # noqa: ARG002
        """Return the tokens whose logits a micro-batch of this weight needs: those of completions, by default."""
        if PROMPT_TOKENS not in batch.columns:
            return 0
        prompts = len(sequences_of(batch.ragged)) * int(batch.columns[PROMPT_TOKENS].to_numpy().sum())
        return batch.num_tokens - prompts

    def size(self, num_tokens: int) -> ModelSize | None:  # noqa: ARG002
        """Return the model size for micro-batches of `num_tokens` tokens, padding counted; None if it is unknown."""
        return None


class CausalMethodConfig(MethodConfig, ABC):
    """Base of the configurations of methods that train a causal language model."""

    model: CausalConfig

    @property
    def takes_lines(self) -> bool:
        return self.model.takes_lines

    @property
    def may_compile(self) -> bool:
        return self.model.lora is None

    @property
    def window_tokens(self) -> int | None:
        shape = self.model.shape()
        return None if shape is None else shape.max_tokens

    def model_flops(self) -> ModelFlops | None:
        return causal_flops(self.model)

    def num_parameters(self) -> int | None:
        return self.model.num_parameters()

    def size(self, num_tokens: int) -> ModelSize | None:
        """A frozen reference counts unless it is the model without its adapters."""
        return model_size(self.model, num_tokens, copies=self.num_frozen_copies)

    @property
    def num_frozen_copies(self) -> int:
        """Frozen models of the same size that training holds."""
        return 0


def samples(method: MethodConfig) -> bool:
    """Return whether the rows are prompts that the model completes."""
    return isinstance(method.predictions, RowScores) and method.predictions.is_sampled
