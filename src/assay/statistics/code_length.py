"""Data efficiency as a code length: the bits needed to transmit the targets to a receiver that trains along.

Sender and receiver hold the same inputs, recipe and seed. For each step the sender codes the step's targets (labels,
trained tokens or preferences) with the model *before* the update (-log2 p bits each), and then both make the update.
The sum over the first pass is the prequential code length (Dawid 1984; Blier & Ollivier 2018): a learner that needs
fewer examples has a shorter code, and no held-out set is used. Exactly-once training makes the sum exact, because every
row is coded once before it is trained on. Dropout does not matter: its noise is keyed by (seed, step, lane), so the
receiver draws the same.

    bits = sum over steps of  loss (mean over the step's weight, nats) x weight / ln 2

The weight of a step is its number of rows, pairs or trained tokens.

Two codes are compared on the same rows in the same order. With one pair of runs the interval is over rows, from the
steps' differences with their autocorrelation (Newey-West), and excludes the variance of seeds. Several pairs with
different seeds include it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from assay.base.errors import DataError
from assay.base.shapes import Float64
from assay.records.commit import Commit
from assay.records.evaluation import Estimate
from assay.records.run import Run
from assay.statistics.interval import CONFIDENCE, normal_quantile, symmetric
from assay.store.ledger.ledger import Ledger
from assay.store.ledger.summary import intact_commits
from assay.store.metrics.curves import Curve, metric_series
from assay.training.recipe import recipe_of

_MAX_POINTS = 1_000_000_000
_ORDER_KEYS = ("seed", "lanes", "global_batch_size", "window_rows", "shuffle_radius_windows", "layout")
"""Keys of the recipe's `loader` that decide which rows each step reads; the others affect only speed."""


class CodeLength(NamedTuple):
    """Code of one run's first pass over its training rows."""

    run_id: str
    bits_per_step: Float64[np.ndarray, "step"]
    """[step]: bits of all rows of the step."""
    rows_per_step: Float64[np.ndarray, "step"]
    """[step]."""
    is_whole_pass: bool
    """False if the run has not read every row once."""
    order: dict[str, Any]
    """The settings that decide which rows each step reads."""

    @property
    def bits(self) -> float:
        return float(self.bits_per_step.sum())

    @property
    def num_rows(self) -> int:
        return int(self.rows_per_step.sum())

    @property
    def bits_per_row(self) -> float:
        """Mean over the rows; binary labels and preferences cost 1 without a model."""
        return self.bits / self.num_rows


def code_length(ledger: Ledger, run_id: str) -> CodeLength:
    """Return the code of a recorded run, up to its last commit or the end of its first pass.

    Steps that were rolled back do not count; their rows are coded by the attempt that committed them. Raises
    `DataError` if the run's loss is not a code, if there is no commit yet, or if the loss or row count of a step is
    missing.
    """
    run = ledger.run(run_id)
    if (method := recipe_of(run).method).coded is None:
        raise DataError(
            f"run {run.run_id}: its training loss is not -log p of what method '{method.type}' learns, so "
            "there is no code. Labels that are classes have one, tokens of SFT, and preferences: of a reward "
            "model without margins and centring, or by the plain sigmoid loss of DPO."
        )
    commits = intact_commits(ledger.log_entries(run.run_id))
    if not commits:
        raise DataError(
            f"run {run.run_id} has no commit yet, so none of its rows counts as trained. Wait for a commit."
        )
    steps_per_epoch = _steps_per_epoch(commits)
    num_steps = min(commits[-1].step, steps_per_epoch or commits[-1].step)
    losses = _by_step(metric_series(ledger, run.run_id, "loss", max_points=_MAX_POINTS), num_steps, run, "loss")
    rows = _by_step(metric_series(ledger, run.run_id, "rows", max_points=_MAX_POINTS), num_steps, run, "rows")
    weights = rows.copy()  # replaced at steps that record a weight
    other = metric_series(ledger, run.run_id, "weight", max_points=_MAX_POINTS)
    in_pass = other.steps <= num_steps
    weights[other.steps[in_pass] - 1] = other.values[in_pass]
    return CodeLength(
        run_id=run.run_id,
        bits_per_step=losses * weights / np.log(2.0),
        rows_per_step=rows,
        is_whole_pass=steps_per_epoch is not None,
        order=_order(run),
    )


def compare_code_lengths(pairs: Sequence[tuple[CodeLength, CodeLength]]) -> Estimate:
    """Return the bits per row that the candidate saves (positive) over its baseline, over the steps that both have.

    Each pair is (baseline, candidate). With one pair the interval is over rows, with several it is over pairs. Raises
    `DataError` unless both runs of a pair code the same rows in the same order.
    """
    if not pairs:
        raise DataError("no pair of runs to compare; give a baseline and a candidate.")
    savings = [_saved_bits(*pair) for pair in pairs]
    means = np.array([float(saved.sum()) / float(rows.sum()) for saved, rows in savings])
    middle = float(means.mean())
    if len(pairs) == 1:
        saved, rows = savings[0]
        # The error of a ratio: each step deviates from its rows' share of the mean.
        error = np.sqrt(newey_west(saved - means[0] * rows)) / float(rows.sum())
        method = f"Newey-West over {len(rows)} steps of one pair; excludes the variance of seeds"
        return symmetric(middle, normal_quantile() * float(error), method=method)
    quantile = float(stdtrit(len(pairs) - 1, 0.5 + CONFIDENCE / 2.0))
    margin = quantile * float(means.std(ddof=1)) / float(np.sqrt(len(pairs)))
    return symmetric(middle, margin, method=f"t over {len(pairs)} pairs of runs")


def newey_west(residuals: Float64[np.ndarray, "step"]) -> float:
    """Return the variance of the sum of autocorrelated deviations of mean zero, with Bartlett weights.

    The number of lags is 4 (n/100)^(2/9), or n^(1/3) if that is more, because a run's weights change slowly.
    """
    count = len(residuals)
    lags = min(count - 1, max(int(4 * (count / 100) ** (2 / 9)), round(count ** (1 / 3))))
    total = float(residuals @ residuals)
    for lag in range(1, lags + 1):
        weight = 1.0 - lag / (lags + 1)
        total += 2.0 * weight * float(residuals[lag:] @ residuals[:-lag])
    return max(total, 0.0)


def _saved_bits(
    baseline: CodeLength, candidate: CodeLength
) -> tuple[Float64[np.ndarray, "step"], Float64[np.ndarray, "step"]]:
    """Return, per step, the bits that the candidate saves, and the rows."""
    names = f"{baseline.run_id} and {candidate.run_id}"
    if differing := sorted(key for key in baseline.order if baseline.order[key] != candidate.order.get(key)):
        raise DataError(
            f"{names}: not the same rows in the same order; they differ in {', '.join(differing)}. Code "
            "lengths are compared step by step: train both on one dataset and split, with one order of rows."
        )
    num_steps = min(len(baseline.bits_per_step), len(candidate.bits_per_step))
    rows, others = (code.rows_per_step[:num_steps] for code in (baseline, candidate))
    if (differing_steps := np.flatnonzero(rows != others)).size:
        step = int(differing_steps[0])
        raise DataError(
            f"{names}: step {step + 1} has {rows[step]:.0f} rows in one and {others[step]:.0f} in the other: "
            "a row group was quarantined in one of them. Compare runs that learned the same rows."
        )
    return baseline.bits_per_step[:num_steps] - candidate.bits_per_step[:num_steps], rows


def _steps_per_epoch(commits: Sequence[Commit]) -> int | None:
    """Return the steps of an epoch, from a commit after the first pass; None if all commits lie within it."""
    for commit in commits:
        if commit.cursor.epoch:
            return (commit.step - commit.cursor.step_in_epoch) // commit.cursor.epoch
    return None


def _by_step(series: Curve, num_steps: int, run: Run, name: str) -> Float64[np.ndarray, "step"]:
    """[step]: the metric of steps 1 to `num_steps`; each step must have exactly one value."""
    steps = np.arange(1, num_steps + 1)
    in_pass = series.steps <= num_steps
    if not np.array_equal(series.steps[in_pass], steps):
        missing = np.setdiff1d(steps, series.steps)
        what = f"step {missing[0]}" if len(missing) else "a single value of some step"
        raise DataError(
            f"run {run.run_id}: '{name}' has {int(in_pass.sum())} values for {num_steps} steps; {what} is "
            f"missing. The metrics in {run.run_dir} are incomplete; copy the run's whole folder."
        )
    return series.values[in_pass]


def _order(run: Run) -> dict[str, Any]:
    recipe = recipe_of(run)
    return {
        "dataset": run.dataset_fingerprint,
        "what is learned": recipe.method.coded,
        "split": recipe.data.split,
        **{f"loader.{key}": getattr(recipe.loader, key) for key in _ORDER_KEYS},
    }
