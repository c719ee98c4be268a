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

import numpy as np

from assay.records.replay import Compared, Explanation, ReplayReport, RowSearch
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
    finding = report.operators.finding if report.operators is not None else None
    if finding is not None and finding.problem == "outside its error bound":
        return Explanation(
            cause="wrong arithmetic",
            because=f"{finding.operator} in {finding.module or 'the step'}: {finding.detail}.",
        )
    if report.rows is not None and report.rows.rows and not _are_most(report.rows):
        return _of_rows(report.rows)
    return _of_loss(report, steps, learning_rate)


def _of_difference(report: ReplayReport, first: Compared) -> Explanation:
    numbers = f"{first.quantity} is on record as {first.recorded} and comes out as {first.replayed}"
    is_first_step = first.step == report.from_step + 1
    is_other_code = report.recorded_code_version != report.code_version
    # The same code on the same weights and rows gives the same loss; only the backward pass may be wrong then.
    in_forward = first.quantity in ("rows", "rollout_digest", "tokens", "learning_rate", "loss")
    if not is_first_step or not (in_forward or is_other_code):
        before = f"Steps {report.from_step + 1} to {first.step - 1} come out as recorded; "
        if is_first_step:
            before = "The loss comes out as recorded; "
        return Explanation(
            cause="wrong arithmetic",
            because=f"{before}at step {first.step} {numbers}: a device computed wrongly then, or does now. "
            "Replay once more, on another machine too: what comes out twice is right.",
        )
    return Explanation(
        cause="other machine or code",
        because=f"Already at the first replayed step {numbers}. The run was made by "
        f"{report.recorded_code_version}, this is {report.code_version}: replay with that code, on the same "
        "kind of device.",
    )


def _are_most(rows: RowSearch) -> bool:
    """Return whether more than half of the rows are named; then the weights are bad for any row."""
    return 2 * len(rows.rows) > rows.num_rows


def _of_rows(rows: RowSearch) -> Explanation:
    count = f"{len(rows.rows):,} of the step's {rows.num_rows:,} rows"
    if rows.loss_without is None or rows.step_loss is None:
        return Explanation(cause="bad data", because=f"{count} have {rows.criterion}; they are named above.")
    return Explanation(
        cause="bad data",
        because=f"The replay is equal. With the weights before the step its rows have a mean loss of "
        f"{rows.step_loss:.4g}, the rows of the steps before {rows.earlier_loss or 0:.4g}; without {count}, "
        f"named above, it is {rows.loss_without:.4g}.",
    )


def _of_loss(report: ReplayReport, steps: Mapping[int, RecordedStep], learning_rate: float | None) -> Explanation:
    previous = [steps[step].values for step in sorted(steps) if step < report.step]
    if (seen := _divergence(report, previous)) is not None:
        return Explanation(
            cause="divergence",
            because=f"{seen} {_rows_text(report)}: the updates before had ruined the weights. Lower "
            f"trainer.optimizer.learning_rate{_rates_text(learning_rate, previous)}, or warm up longer.",
        )
    before = previous[-NUM_BEFORE:]
    losses = np.array([values["loss"] for values in before if math.isfinite(values["loss"])])
    if len(losses) < 8:
        return Explanation(cause="ordinary", because="Too few steps before it are on record to call it high.")
    assert report.loss is not None, "what is not finite has diverged"
    median, scale = float(np.median(losses)), sigma_of(losses) or 1e-12
    sigmas = (report.loss - median) / scale
    seen = f"The loss is {report.loss:.4g}; over the {len(losses):,} steps before: median {median:.4g}"
    if sigmas < SPIKE_SIGMAS:
        return Explanation(cause="ordinary", because=f"{seen}, so this is {sigmas:+.1f} standard deviations: no spike.")
    return Explanation(
        cause="optimisation",
        because=f"The replay is equal, and with the same weights the step's rows are no worse than the rows "
        f"before them. {seen}: the weights had gone wrong already.{_largest_gradient(before, report.step)}",
    )


def _rates_text(peak: float | None, previous: list[dict[str, float]]) -> str:
    """Return the learning rates as text: ` (1e+03; 200 in the step before)`."""
    known = [] if peak is None else [f"{peak:.3g}"]
    if previous and f"{previous[-1]['learning_rate']:.3g}" not in known:
        known.append(f"{previous[-1]['learning_rate']:.3g} in the step before")
    return f" ({'; '.join(known)})" if known else ""


def _rows_text(report: ReplayReport) -> str:
    rows = report.rows
    if rows is None or not rows.rows:
        return "No row makes it so by itself"
    return f"{len(rows.rows):,} of the step's {rows.num_rows:,} rows are so with these weights"


def _divergence(report: ReplayReport, previous: list[dict[str, float]]) -> str | None:
    if report.loss is None:
        return "The loss is not finite again."
    if report.gradient_norm is None:
        return f"The loss is {report.loss:.4g}, and the gradient's norm is not finite."
    first = next((values["loss"] for values in previous if math.isfinite(values["loss"])), None)
    if first is None or report.loss <= DIVERGED_FACTOR * first or first <= 0.0:
        return None
    return f"The loss is {report.loss:.4g}; training began at {first:.4g}."


def _largest_gradient(before: list[dict[str, float]], step: int) -> str:
    """Return which previous step has the largest gradient."""
    norms = np.array([values["gradient_norm"] for values in before])
    worst = int(np.nanargmax(norms))
    return (
        f" The largest gradient before it is that of step {step - len(norms) + worst}: norm "
        f"{norms[worst]:.3g}, median {np.nanmedian(norms):.3g}."
    )
