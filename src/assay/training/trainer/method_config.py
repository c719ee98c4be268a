"""What a method's configuration must say before anything starts; imports no torch.

    recipe --> MethodConfig --> does the dataset suit it? how large is its model? what will its predictions be?

What is said here is checked, planned with and evaluated by code that does not know which method it is.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from assay.base.config import FrozenConfig
from assay.data.dataset.columns import sequences_of
from assay.data.loader.config import LoaderConfig
from assay.models.config import ModelSize
from assay.records.dataset import DatasetManifest
from assay.records.evaluation import ACCURACY, AUC, LOG_LOSS, Metric
from assay.records.journal import JournaledGroup
from assay.training.checkpoint.named_commit import CommitName


class BinaryPredictions(NamedTuple):
    """Columns `label` (0 or 1) and `probability` (of label 1): ranked, calibrated, and compared by AUC."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Those of the table of predictions."""
        return ("label", "probability")

    @property
    def metric(self) -> Metric:
        """By which commits are best and runs are compared."""
        return AUC


class RowScores(NamedTuple):
    """A column of each metric's name with every row's own value; runs are compared by the mean of the first."""

    metrics: tuple[Metric, ...]
    counted: str | None = None
    """A further column: by what rows count in a mean over what they are made of (tokens) and not over rows."""
    is_sampled: bool = False
    """They are of completions that are drawn and graded: the error of the mean is written down beside it, for
    what warns of leaking rewards."""
    ranges: Mapping[str, tuple[float, float]] = {}
    """Name of a metric -> what a row's score can be at the least and at the most, where that is known."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Those of the table of predictions."""
        return (*(metric.name for metric in self.metrics), *([self.counted] if self.counted else []))

    @property
    def metric(self) -> Metric:
        """By which commits are best and runs are compared."""
        return self.metrics[0]


class ClassPredictions(NamedTuple):
    """Columns `predicted` (a place among `names`), `accuracy` and `log_loss`; runs are compared by accuracy."""

    names: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Those of the table of predictions."""
        return ("predicted", *(metric.name for metric in self.metrics))

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Means over rows."""
        return (ACCURACY, LOG_LOSS)

    @property
    def ranges(self) -> Mapping[str, tuple[float, float]]:
        """As of `RowScores`."""
        return {LOG_LOSS.name: (0.0, math.inf)}

    @property
    def metric(self) -> Metric:
        """By which commits are best and runs are compared."""
        return ACCURACY


class NumberPredictions(NamedTuple):
    """Columns `prediction`, `absolute_error` and `squared_error`; runs are compared by the absolute error."""

    unit: str
    """The unit of the labels; empty where it was not said."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Those of the table of predictions."""
        return ("prediction", *(metric.name for metric in self.metrics))

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Means over rows."""
        unit = self.unit or "units of the label"
        return (
            Metric(name="absolute_error", unit=unit, higher_is_better=False),
            Metric(name="squared_error", unit=f"{unit} squared", higher_is_better=False),
        )

    @property
    def ranges(self) -> Mapping[str, tuple[float, float]]:
        """As of `RowScores`."""
        return {metric.name: (0.0, math.inf) for metric in self.metrics}

    @property
    def metric(self) -> Metric:
        """By which commits are best and runs are compared."""
        return self.metrics[0]


Predictions = BinaryPredictions | RowScores | ClassPredictions | NumberPredictions


class MethodConfig(FrozenConfig, ABC):
    """What a user chooses about a method. `type`, a literal, is its folder's name."""

    type: str

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Dataset columns that it reads."""

    @property
    @abstractmethod
    def predictions(self) -> Predictions:
        """What its model says of each validation row."""

    @property
    def coded(self) -> str | None:
        """What the training loss is -log p of, in nats (`labels`, `preferences`); None where it is something
        else, of which there is no code."""
        return None

    @property
    def runs(self) -> Mapping[str, CommitName]:
        """Key of the recipe -> the commit of another run that is asked while this one trains."""
        return {}

    @property
    def takes_packed_rows(self) -> bool:
        """Whether several rows may share a sequence."""
        return False

    @property
    def may_compile(self) -> bool:
        """Whether layers of its model may be programs (`trainer.compile`): seen to be exact."""
        return False

    @property
    def answers_per_prompt(self) -> int | None:
        """Answers that each row is given, to learn from what they earn; None where rows are no prompts."""
        return None

    @property
    def window_tokens(self) -> int | None:
        """Longest sequence of its model, completion included; None where it completes no texts."""
        return None

    @abstractmethod
    def check_dataset(self, manifest: DatasetManifest) -> None:
        """Raise a `ConfigError` about rows that its model cannot take; the columns are known to be there."""

    def end_ids(self) -> tuple[int, ...]:
        """Tokens that end what the model samples in training; none where it samples nothing."""
        return ()

    def fault_of_label(self, label: str | float) -> str | None:  # noqa: ARG002
        """Why a row's label is none that its model learns, with those that are; None where it is one.

        `check_dataset` says it of all rows; this is for who can still name a row's place.
        """
        return None

    def check_batches(self, loader: LoaderConfig) -> None:
        """Raise a `ConfigError` about steps of fewer rows than it can learn from."""

    def check_services(self, manifest: DatasetManifest) -> None:
        """Raise about what is asked while a run trains and does not answer, or not so that it helps, and about
        code that this machine cannot keep in; rows are known to suit. Before there is a run."""

    def problems_of_journal(self, groups: Sequence[JournaledGroup]) -> Iterator[str]:  # noqa: ARG002
        """What the journal says of one lane in one step, and cannot be; in words."""
        return iter(())

    @abstractmethod
    def num_parameters(self) -> int | None:
        """Trained numbers of the model; None where only a folder of weights knows."""

    def learned_from(self, rows: int, longest: int) -> tuple[int, int]:
        """Sequences that so many rows of a lane, of at most `longest` tokens, become; tokens of the widest."""
        # Both sequences of a pair are as wide as the longer one.
        return rows, longest * len(sequences_of(self.columns))

    @property
    def updates_per_step(self) -> int:
        """Updates that a step makes of the same rows, each with an exchange of gradients."""
        return 1

    def sampling_numbers(self, rows: int, longest: int) -> int:  # noqa: ARG002
        """Numbers that are held while so many rows are answered before the losses; of most methods none."""
        return 0

    def size(self, num_tokens: int) -> ModelSize | None:  # noqa: ARG002
        """For micro-batches of so many tokens, padding counted; None where nobody has said how it grows."""
        return None


def samples(method: MethodConfig) -> bool:
    """Whether its rows are prompts, which the model answers."""
    return isinstance(method.predictions, RowScores) and method.predictions.is_sampled
