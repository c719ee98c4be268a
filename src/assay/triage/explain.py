"""Explains why a step looks bad: wrong arithmetic, bad data, or the optimization itself.

the replay differs from the record             -> wrong arithmetic (if only from this step on), or
                                                  a record made by another machine or code
equal, and an operator is outside its bound    -> wrong arithmetic, even if some rows look bad
equal, and rows of this step are worse than
previous rows with the same weights            -> bad data; the rows are named
equal, rows are no worse, and the loss is not
finite or far above its start                  -> divergence: earlier updates ruined the weights
equal, rows are no worse, the loss is high     -> optimization: the weights were already bad
equal, the loss is in the usual range          -> ordinary
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from assay.records.replay import Cause, Compared, Explanation, ReplayReport, RowSearch
from assay.records.statement import Statement
from assay.statistics.robust import sigma_of
from assay.store.metrics.recorded import RecordedStep

NUM_BEFORE = 50
"""Number of previous steps with which a loss is compared."""
SPIKE_SIGMAS = 6.0
"""A loss this many robust standard deviations above the median is a spike."""
DIVERGED_FACTOR = 10.0
"""A loss above this multiple of the first step's loss is a divergence, however few steps are recorded."""


def explain(
    report: ReplayReport, steps: Mapping[int, RecordedStep], *, learning_rate: float | None = None
) -> Explanation:
    """Return the cause, from a replay that also searched the rows. `learning_rate` is the recipe's peak."""
    if report.first_difference is not None:
        return _of_difference(report, report.first_difference)
    found = report.operators.finding if report.operators is not None else None
    if found is not None and found.problem == "outside its error bound":
        return _explanation(
            "wrong arithmetic", found.problem, operator=found.operator, module=found.module or "the step",
            detail=found.detail,
        )  # fmt: skip
    # If more than half of the rows are named, the weights are bad for any row.
    if report.rows is not None and 0 < 2 * len(report.rows.rows) <= report.rows.num_rows:
        return _of_rows(report.rows)
    return _of_loss(report, steps, learning_rate)


def _explanation(cause: Cause, code: str, **values: Any) -> Explanation:
    return Explanation(cause=cause, because=Statement(code=code, values=values))


def _of_difference(report: ReplayReport, first: Compared) -> Explanation:
    values = {"step": first.step, "quantity": first.quantity, "recorded": first.recorded, "replayed": first.replayed}
    is_first_step = first.step == report.from_step + 1
    is_other_code = report.recorded_code_version != report.code_version
    # The same code on the same weights and rows gives the same loss; only the backward pass may be wrong then.
    in_forward = first.quantity in ("rows", "rollout_digest", "tokens", "learning_rate", "loss")
    if is_first_step and (in_forward or is_other_code):
        return _explanation(
            "other machine or code", "differs at once", recorded_by=report.recorded_code_version,
            replayed_by=report.code_version, **values,
        )  # fmt: skip
    if is_first_step:
        return _explanation("wrong arithmetic", "differs after the loss", **values)
    return _explanation(
        "wrong arithmetic", "differs from a step on", first=report.from_step + 1, last=first.step - 1, **values
    )


def _of_rows(rows: RowSearch) -> Explanation:
    count = {"rows": len(rows.rows), "num_rows": rows.num_rows}
    if rows.loss_without is None or rows.step_loss is None:
        return _explanation("bad data", "bad rows", criterion=rows.criterion, **count)
    return _explanation(
        "bad data", "rows of high loss", loss=rows.step_loss, earlier=rows.earlier_loss or 0.0,
        without=rows.loss_without, **count,
    )  # fmt: skip


def _of_loss(report: ReplayReport, steps: Mapping[int, RecordedStep], learning_rate: float | None) -> Explanation:
    previous = [steps[step].values for step in sorted(steps) if step < report.step]
    first = next((values["loss"] for values in previous if math.isfinite(values["loss"])), None)
    if (code := _divergence(report, first)) is not None:
        rows = report.rows
        return _explanation(
            "divergence", code, loss=report.loss, first=first, rows=0 if rows is None else len(rows.rows),
            num_rows=None if rows is None else rows.num_rows, peak=learning_rate,
            rate=previous[-1]["learning_rate"] if previous else None,
        )  # fmt: skip
    before = previous[-NUM_BEFORE:]
    losses = np.array([values["loss"] for values in before if math.isfinite(values["loss"])])
    if len(losses) < 8:
        return _explanation("ordinary", "few steps before")
    assert report.loss is not None, "what is not finite has diverged"
    median, scale = float(np.median(losses)), sigma_of(losses) or 1e-12
    sigmas = (report.loss - median) / scale
    values = {"loss": report.loss, "steps": len(losses), "median": median}
    if sigmas < SPIKE_SIGMAS:
        return _explanation("ordinary", "no spike", sigmas=sigmas, **values)
    return _explanation("optimisation", "spike", **values, **_largest_gradient(before, report.step))


def _divergence(report: ReplayReport, first_loss: float | None) -> str | None:
    """Return the code of a divergence."""
    if report.loss is None:
        return "loss not finite"
    if report.gradient_norm is None:
        return "gradient not finite"
    is_far_above = first_loss is not None and first_loss > 0.0 and report.loss > DIVERGED_FACTOR * first_loss
    return "loss far above its start" if is_far_above else None


def _largest_gradient(before: list[dict[str, float]], step: int) -> dict[str, float]:
    """Return which previous step has the largest gradient."""
    norms = np.array([values["gradient_norm"] for values in before])
    worst = int(np.nanargmax(norms))
    return {
        "worst_step": step - len(norms) + worst,
        "norm": float(norms[worst]),
        "median_norm": float(np.nanmedian(norms)),
    }
