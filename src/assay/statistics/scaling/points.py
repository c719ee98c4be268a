"""Points of a scaling law: the scale of finished runs and their losses.

A point gives two of parameters N, training tokens D and compute C (FLOP); the third follows from C = 6 N D (Kaplan et
al. 2020, forward and backward of a dense transformer). It may give only one if the law needs no more. Points of one run
(its checkpoints) share a `group` and are resampled together.
"""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from assay.base.digest import sha256_of_json
from assay.base.errors import DataError
from assay.base.shapes import Bool, Float64, Int, Int64

Variables = Mapping[str, Float64[np.ndarray, "point"]]
"""By name: `parameters`, `tokens`, `compute`."""

FLOP_PER_PARAMETER_AND_TOKEN = 6.0
MAX_COMPUTE_RATIO = 10.0
"""Largest factor between the given FLOP and 6 N D: experts and attention change less; a wrong unit changes more."""
MIN_VALUE, MAX_VALUE = 1e-100, 1e100
VARIABLES = ("parameters", "tokens", "compute")
_HEADINGS = {
    "parameters": ("parameters", "params", "n", "model size", "model_size", "num_parameters"),
    "tokens": ("tokens", "d", "training tokens", "training_tokens", "num_tokens"),
    "compute": ("compute", "c", "flop", "flops", "training flop", "training_flop"),
    "loss": ("loss", "validation_loss", "final_loss"),
    "group": ("run", "group", "run_id"),
}


@dataclass(frozen=True)
class ScalingPoints:
    """Scales and losses of runs; arrays of one length, all numbers positive and finite."""

    loss: Float64[np.ndarray, "point"]
    variables: Variables
    groups: Int64[np.ndarray, "point"]
    """[point]: points with the same number are not independent."""
    scores: Float64[np.ndarray, "point"] | None = None
    """[point]: score of a downstream task in [0, 1]; None if no task was scored."""

    @property
    def num_points(self) -> int:
        return len(self.loss)

    def where(self, chosen: Bool[np.ndarray, "point"] | Int[np.ndarray, "chosen"]) -> "ScalingPoints":
        variables = {name: values[chosen] for name, values in self.variables.items()}
        scores = None if self.scores is None else self.scores[chosen]
        return ScalingPoints(self.loss[chosen], variables, self.groups[chosen], scores)

    def without_highest_losses(self, count: int) -> "ScalingPoints":
        """Return the points without the `count` highest losses, in their original order."""
        order = np.sort(np.argsort(self.loss, kind="stable")[: max(0, self.num_points - count)])
        return self.where(order)

    def sha256(self) -> str:
        tree = {name: values.tolist() for name, values in sorted(self.variables.items())}
        if self.scores is not None:
            tree["scores"] = self.scores.tolist()
        return sha256_of_json({**tree, "loss": self.loss.tolist(), "groups": self.groups.tolist()})


def scaling_points(
    loss: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    scores: ArrayLike | None = None,
    source: str = "points",
    **columns: ArrayLike,
) -> ScalingPoints:
    """Return points from arrays by name; missing variables are derived by C = 6 N D.

    Raises `DataError` if a number is not positive or lies outside `MIN_VALUE` to `MAX_VALUE`, if a score is not in [0,
    1], or if no scale is given.
    """
    losses = np.asarray(loss, float)
    variables = _completed({name: np.asarray(values, float) for name, values in columns.items()})
    if not variables:
        raise DataError(f"{source}: none of {', '.join(VARIABLES)} is given; a scaling law needs one of them.")
    for name, values in [("loss", losses), *variables.items()]:
        bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
        if len(bad):
            raise DataError(
                f"{source}: {name} of point {bad[0] + 1} is {values[bad[0]]:g}; every {name} must be "
                "a positive number. Remove the point, or correct it."
            )
        far = np.flatnonzero((values < MIN_VALUE) | (values > MAX_VALUE))
        if len(far):
            raise DataError(
                f"{source}: {name} of point {far[0] + 1} is {values[far[0]]:.3g}, expected between "
                f"{MIN_VALUE:g} and {MAX_VALUE:g}. The run diverged, or the unit is wrong. Remove the point, or "
                "correct it."
            )
    _check_compute(variables, source)
    numbers = np.arange(len(losses)) if groups is None else np.unique(groups, return_inverse=True)[1]
    marks = None if scores is None else np.asarray(scores, float)
    if marks is not None and (outside := np.flatnonzero(~((marks >= 0) & (marks <= 1)))).size:
        raise DataError(
            f"{source}: the score of point {outside[0] + 1} is {marks[outside[0]]:g}; expected a share between "
            "0 and 1. Divide percentages by 100."
        )
    if len(losses) > 1 and np.ptp(losses) <= 1e-9 * losses.max():
        raise DataError(f"{source}: every loss is {losses[0]:g}, so there is nothing to fit. Check the column.")
    return ScalingPoints(losses, variables, np.asarray(numbers, np.int64), marks)


def read_points(path: Path, *, score_column: str | None = None) -> ScalingPoints:
    """Read points from a CSV file with a header; unknown columns are ignored.

    `score_column` names the accuracy of a downstream task.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(csv.reader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not readable as CSV: {error}") from error
    if not lines:
        raise DataError(f"{path}: empty; expected a heading line such as parameters,tokens,loss.")
    column_indices = _column_indices(lines[0], path, score_column)
    rows = [(number, line) for number, line in enumerate(lines[1:], start=2) if any(map(str.strip, line))]
    for number, line in rows:
        if len(line) > len(lines[0]) and any(map(str.strip, line[len(lines[0]) :])):
            raise DataError(
                f"{path}: line {number} has {len(line)} cells, the heading {len(lines[0])}. Put texts "
                "with commas between quotes, and write numbers without commas."
            )
    if not rows:
        raise DataError(f"{path}: a heading and no points. Write one line per finished run.")
    groups = None
    if (index := column_indices.pop("group", None)) is not None:
        groups = [line[index] if index < len(line) else "" for _, line in rows]
    columns = {
        name: [_number(line, index, f"{path}: line {number}: {name}") for number, line in rows]
        for name, index in column_indices.items()
    }
    loss, scores = columns.pop("loss"), columns.pop("score", None)
    return scaling_points(loss, groups=groups, scores=scores, source=str(path), **columns)


def completed_target(target: Mapping[str, float]) -> dict[str, float]:
    """Return a target's variables, with missing ones derived by C = 6 N D."""
    arrays = _completed({name: np.array([value]) for name, value in target.items()})
    return {name: float(values[0]) for name, values in arrays.items()}


def _check_compute(variables: Variables, source: str) -> None:
    """Reject points whose parameters, tokens and compute contradict each other."""
    if not set(variables) >= set(VARIABLES):
        return
    with np.errstate(over="ignore", invalid="ignore"):
        expected = FLOP_PER_PARAMETER_AND_TOKEN * variables["parameters"] * variables["tokens"]
        ratio = variables["compute"] / expected
    for index in np.flatnonzero((ratio > MAX_COMPUTE_RATIO) | (ratio < 1 / MAX_COMPUTE_RATIO)):
        raise DataError(
            f"{source}: point {index + 1} has compute {variables['compute'][index]:.3g}, but 6 x parameters x "
            f"tokens is {expected[index]:.3g} FLOP. Correct the column that is in another unit, or leave one "
            "of the three out."
        )


def _completed(columns: dict[str, Float64[np.ndarray, "point"]]) -> dict[str, Float64[np.ndarray, "point"]]:
    parameters, tokens, compute = (columns.get(name) for name in VARIABLES)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # infinite values are rejected later
        if compute is None and parameters is not None and tokens is not None:
            columns["compute"] = FLOP_PER_PARAMETER_AND_TOKEN * parameters * tokens
        elif tokens is None and parameters is not None and compute is not None:
            columns["tokens"] = compute / (FLOP_PER_PARAMETER_AND_TOKEN * parameters)
        elif parameters is None and tokens is not None and compute is not None:
            columns["parameters"] = compute / (FLOP_PER_PARAMETER_AND_TOKEN * tokens)
    return {name: columns[name] for name in VARIABLES if name in columns}


def _column_indices(heading: list[str], path: Path, score_column: str | None) -> dict[str, int]:
    names = [name.strip().lower() for name in heading]
    column_indices = {}
    headings = _HEADINGS if score_column is None else {**_HEADINGS, "score": (score_column.strip().lower(),)}
    if score_column is not None and score_column.strip().lower() not in names:
        raise DataError(f"{path}: no column '{score_column}'; there are {', '.join(heading)}.")
    for name, known in headings.items():
        found = [index for index, heading_name in enumerate(names) if heading_name in known]
        if len(found) > 1:
            raise DataError(f"{path}: columns {[heading[index] for index in found]} both mean {name}; keep one.")
        if found:
            column_indices[name] = found[0]
    if "loss" not in column_indices or not set(column_indices) & set(VARIABLES):
        raise DataError(
            f"{path}: expected a column 'loss' and some of 'parameters', 'tokens', 'compute', found "
            f"{', '.join(heading) or 'nothing'}. Rename the columns."
        )
    return column_indices


def _number(line: list[str], index: int, name: str) -> float:
    text = line[index].strip() if index < len(line) else ""
    try:
        value = float(text)
    except ValueError as error:
        raise DataError(f"{name} is '{text}', expected a number.") from error
    if not math.isfinite(value):
        raise DataError(f"{name} is {text}, expected a finite number.")
    return value
