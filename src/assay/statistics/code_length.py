"""Data efficiency: how many bits it takes to send what is learned to somebody who learns along: the labels of
rows, the trained tokens of texts, which of two completions was preferred.

Sender and receiver hold the same inputs, the same recipe and the same seed. For each step the sender codes
the step's rows with the model as it is *before* the update (-log2 p bits each), then both make the update.
The sum over the first pass is the prequential code length (Dawid 1984; Blier & Ollivier 2018): a learner that
needs fewer examples has a shorter code, and no held-out set is spent on the question. Exactly-once makes it
exact: every row is coded once, before it was ever trained on. Dropout does not spoil it: its noise is keyed
by (seed, step, lane), so the receiver draws the same.

    bits = sum over steps of  loss (mean over what the step weighs, nats) x weight / ln 2

A step weighs its rows, pairs, or trained tokens.

Two codes are compared on the same rows in the same order. With one pair of runs the interval is over rows:
the steps' differences, their correlation in time allowed for (Newey-West). It says nothing about the luck of
a seed; several pairs, each with a seed of its own, give an interval that does.
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
"""The keys of the recipe's `loader` that decide which rows stand behind which step. The rest is speed."""


class CodeLength(NamedTuple):
    """The code of one run's first pass over its training rows."""

    run_id: str
    bits_per_step: Float64[np.ndarray, "step"]
    """[step]: for all rows of the step."""
    rows_per_step: Float64[np.ndarray, "step"]
    """[step]."""
    is_whole_pass: bool
    """False: the run ended, or was read, before each row had been seen once."""
    order: dict[str, Any]
    """What decides which rows stand behind which step."""

    @property
    def bits(self) -> float:
        """The whole code."""
        return float(self.bits_per_step.sum())

    @property
    def num_rows(self) -> int:
        """Rows that it codes."""
        return int(self.rows_per_step.sum())

    @property
    def bits_per_row(self) -> float:
        """Mean over the rows; 1 is what binary labels and preferences cost without any model."""
        return self.bits / self.num_rows


def code_length(ledger: Ledger, run_id: str) -> CodeLength:
    """The code of a run on record, up to its last commit or the end of its first pass.

    Steps that were rolled back do not count; their rows are coded by the attempt that learned them for good.
    Raises `DataError` where the run's loss is no code, there is no commit yet, or a step's loss or row count is
    not on record.
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
            f"run {run.run_id} has no commit yet, so no row of it is learned for good. Wait for one."
        )
    steps_per_epoch = _steps_per_epoch(commits)
    num_steps = min(commits[-1].step, steps_per_epoch or commits[-1].step)
    losses = _by_step(metric_series(ledger, run.run_id, "loss", max_points=_MAX_POINTS), num_steps, run, "loss")
    rows = _by_step(metric_series(ledger, run.run_id, "rows", max_points=_MAX_POINTS), num_steps, run, "rows")
    weights = rows.copy()  # but where another was written down
    other = metric_series(ledger, run.run_id, "weight", max_points=_MAX_POINTS)
    in_pass = other.steps <= num_steps
    if "tokens" in method.coded and not in_pass.any():
        raise DataError(
            f"run {run.run_id} was trained by an assay that did not write down how many tokens a step trains, "
            "so the length of its code is not known. Train it again."
        )
    weights[other.steps[in_pass] - 1] = other.values[in_pass]
    return CodeLength(
        run_id=run.run_id,
        bits_per_step=losses * weights / np.log(2.0),
        rows_per_step=rows,
        is_whole_pass=steps_per_epoch is not None,
        order=_order(run),
    )


def compare_code_lengths(pairs: Sequence[tuple[CodeLength, CodeLength]]) -> Estimate:
    """Bits per row that the candidate saves (positive) over its baseline, over the steps that both have.

    Each pair is (baseline, candidate). With one pair the interval is over rows, with more over pairs. Raises
    `DataError` unless the two of a pair code the same rows in the same order.
    """
    if not pairs:
        raise DataError("no pair of runs to compare; give a baseline and a candidate.")
    savings = [_saved_bits(*pair) for pair in pairs]
    means = np.array([float(saved.sum()) / float(rows.sum()) for saved, rows in savings])
    middle = float(means.mean())
    if len(pairs) == 1:
        saved, rows = savings[0]
        # Of a ratio: each step's deviation from its rows' share of the mean.
        error = np.sqrt(newey_west(saved - means[0] * rows)) / float(rows.sum())
        method = f"Newey-West over {len(rows)} steps of one pair; the seed's luck is not in it"
        return symmetric(middle, normal_quantile() * float(error), method=method)
    quantile = float(stdtrit(len(pairs) - 1, 0.5 + CONFIDENCE / 2.0))
    margin = quantile * float(means.std(ddof=1)) / float(np.sqrt(len(pairs)))
    return symmetric(middle, margin, method=f"t over {len(pairs)} pairs of runs")


def newey_west(deviations: Float64[np.ndarray, "step"]) -> float:
    """Variance of the sum of correlated deviations of mean zero, with Bartlett weights.

    Over 4 (n/100)^(2/9) lags, or n^(1/3) where that is more: a run's weights change slowly.
    """
    count = len(deviations)
    lags = min(count - 1, max(int(4 * (count / 100) ** (2 / 9)), round(count ** (1 / 3))))
    total = float(deviations @ deviations)
    for lag in range(1, lags + 1):
        weight = 1.0 - lag / (lags + 1)
        total += 2.0 * weight * float(deviations[lag:] @ deviations[:-lag])
    return max(total, 0.0)


def _saved_bits(
    baseline: CodeLength, candidate: CodeLength
) -> tuple[Float64[np.ndarray, "step"], Float64[np.ndarray, "step"]]:
    """Per step: bits that the candidate saves, and rows."""
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
    """From a commit behind the first pass; None while all commits are within it."""
    for commit in commits:
        if commit.cursor.epoch:
            return (commit.step - commit.cursor.step_in_epoch) // commit.cursor.epoch
    return None


def _by_step(curve: Curve, num_steps: int, run: Run, name: str) -> Float64[np.ndarray, "step"]:
    """[step]: the metric of steps 1 to `num_steps`, each of which must be there once."""
    steps = np.arange(1, num_steps + 1)
    in_pass = curve.steps <= num_steps
    if not np.array_equal(curve.steps[in_pass], steps):
        missing = np.setdiff1d(steps, curve.steps)
        what = f"step {missing[0]}" if len(missing) else "a single value of some step"
        raise DataError(
            f"run {run.run_id}: '{name}' has {int(in_pass.sum())} values for {num_steps} steps; {what} is not on "
            f"record. The metrics in {run.run_dir} are incomplete here; copy the run's folder whole."
        )
    return curve.values[in_pass]


def _order(run: Run) -> dict[str, Any]:
    recipe = recipe_of(run)
    return {
        "dataset": run.dataset_fingerprint,
        "what is learned": recipe.method.coded,
        "split": recipe.data.split,
        **{f"loader.{key}": getattr(recipe.loader, key) for key in _ORDER_KEYS},
    }
