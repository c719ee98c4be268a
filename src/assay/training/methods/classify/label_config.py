"""The configuration of labels: 0 and 1, class names, or a number; imports no torch."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, field_validator

from assay.base.config import FrozenConfig, first_repeated
from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.data.dataset.columns import LABEL
from assay.records.dataset import DatasetManifest
from assay.training.trainer.method_config import BinaryPredictions, ClassPredictions, NumberPredictions, Predictions

_SHOWN = 5
_FRACTIONS = ("halffloat", "float", "double")


class BinaryLabel(FrozenConfig):
    """Labels 0 and 1; runs are compared by AUC."""

    type: Literal["binary"] = "binary"

    positive: str | None = None
    """If labels are names: the one that counts as 1; all others count as 0."""

    @property
    def num_outputs(self) -> int:
        return 1

    @property
    def predictions(self) -> Predictions:
        return BinaryPredictions()

    def problem_of(self, label: str | float) -> str | None:
        """See `MethodConfig.label_problem`. With `positive`, all other names count as 0."""
        if self.positive is not None or _label_text(label) in ("0", "1"):
            return None
        return f"'label' is {label!r:.60}, and this model's are 0 and 1"

    def check_dataset(self, manifest: DatasetManifest) -> None:
        known = {"0", "1"} if self.positive is None else manifest.label_counts.keys()
        if self.positive is not None and self.positive not in manifest.label_counts:
            raise ConfigError(
                f"method.label.positive is '{self.positive}', and no row of dataset '{manifest.name}' has "
                f"this label. It has: {_some(manifest.label_counts)}."
            )
        unexpected = [label for label in manifest.label_counts if label not in known]
        if unexpected or manifest.columns.get(LABEL, "") in _FRACTIONS:
            raise ConfigError(
                f"dataset '{manifest.name}' has labels other than 0 and 1"
                f"{f': {_some(unexpected)}' if unexpected else ' (numbers)'}, and method.label is binary. "
                f"{_hint(manifest)}"
            )


class ClassesLabel(FrozenConfig):
    """Labels that are names; runs are compared by accuracy."""

    type: Literal["classes"]

    names: tuple[str, ...] = Field(min_length=2)
    """All class names, in the order of the model's outputs."""

    @field_validator("names")
    @classmethod
    def _names_differ(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if (twice := first_repeated(names)) is not None:
            raise ValueError(f"'{twice}' is listed twice")
        return names

    @property
    def num_outputs(self) -> int:
        return len(self.names)

    @property
    def predictions(self) -> Predictions:
        return ClassPredictions(self.names)

    def problem_of(self, label: str | float) -> str | None:
        if _label_text(label) in self.names:
            return None
        return f"'label' is {label!r:.60}, and this model's are {_some(self.names)}"

    def check_dataset(self, manifest: DatasetManifest) -> None:
        if not manifest.label_counts:
            raise ConfigError(
                f"the labels of dataset '{manifest.name}' are numbers, and method.label is classes. {_hint(manifest)}"
            )
        if unexpected := [label for label in manifest.label_counts if label not in self.names]:
            them, their = ("it", "its") if len(unexpected) == 1 else ("them", "their")
            raise ConfigError(
                f"dataset '{manifest.name}' has {number_of(len(unexpected), 'label')} that method.label.names "
                f"does not list: {_some(unexpected)}. List {them}, or build the dataset without {their} rows."
            )


class NumberLabel(FrozenConfig):
    """Labels that are numbers. The loss is the squared error of (label - mean) / scale; runs are compared by the mean
    absolute error, in the label's unit."""

    type: Literal["number"]

    mean: float = 0.0
    """For the labels, approximately."""

    scale: PositiveFloat = 1.0
    """Standard deviation of the labels, approximately."""

    unit: str = ""
    """Unit of the labels, for reports: `EUR`, `days`."""

    @property
    def num_outputs(self) -> int:
        return 1

    @property
    def predictions(self) -> Predictions:
        return NumberPredictions(self.unit)

    def problem_of(self, label: str | float) -> str | None:
        if not isinstance(label, str):
            return None
        return f"'label' is {label!r:.60}, and this model's are numbers"

    def check_dataset(self, manifest: DatasetManifest) -> None:
        kind = manifest.columns.get(LABEL, "")
        if not kind.startswith((*_FRACTIONS, "int", "uint", "bool")):
            raise ConfigError(
                f"the labels of dataset '{manifest.name}' are of type {kind}, and method.label is number. "
                f"{_hint(manifest)}"
            )


LabelConfig = Annotated[BinaryLabel | ClassesLabel | NumberLabel, Field(discriminator="type")]


def _label_text(label: str | float) -> str:
    """Return the label as datasets write it: true is 1, and whole numbers have no decimal point."""
    if isinstance(label, str):
        return label
    return str(int(label)) if label == label // 1 else str(label)


def _some(labels: Iterable[str]) -> str:
    names = [repr(label) for label in labels]
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


def _hint(manifest: DatasetManifest) -> str:
    if not manifest.label_counts:
        return "Use method.label={type: number}."
    if manifest.label_counts.keys() <= {"0", "1"}:
        return "Leave method.label out."
    some = ", ".join(sorted(manifest.label_counts)[:_SHOWN])
    more = ", ..." if len(manifest.label_counts) > _SHOWN else ""
    return f"Use method.label={{type: classes, names: [{some}{more}]}}."
