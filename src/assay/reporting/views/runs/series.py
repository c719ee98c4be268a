"""A run's metrics as series of points for plots. Plain values, so tests can construct them."""

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from assay.records.devices import dense_bf16_flops
from assay.reporting.views.runs.curve_window import CurveColumns, Numbers, window_curve
from assay.store.ledger.ledger import Ledger
from assay.store.metrics.curves import Curve, metric_series, metric_summaries

MAX_POINTS = 2_000
"""Longer metrics are read in this many columns, with exact points at both ends."""
ENDS = 10
"""Steps at the beginning and at the end whose means are compared."""
RATIO_SEGMENTS = 50
"""Number of ranges of steps over which ratios such as the throughput are averaged."""
VALIDATION_CURVE = "validation_"
"""Prefix of the validation metric's name."""
VALIDATION_ERROR = "validation_*_error"
"""Standard error of a validation metric."""
THROUGHPUT, MFU = "tokens_per_s", "mfu"
RATIOS = {THROUGHPUT: ("tokens", "step_s"), MFU: ("model_flops", "step_s")}
"""Curves that are quotients of two metrics."""
GRADER_REWARD = "reward_*"
"""Score of one of several rewards, before its weight. `reward_std` is none."""

SHOWN = (
    "reward", GRADER_REWARD, "length", "truncated", "zero_std", "kl", "entropy", "distinct", "failed_grades",
    "logprob_gap", "drift", "clipped", "loss", "validation_*", "accuracy", "margin", "chosen_reward",
    "rejected_reward", "mean_reward", "token_accuracy", "gradient_norm", "learning_rate",
)  # fmt: skip
"""Patterns of the metrics that pages show."""
MAIN_NAMES = tuple(
    {*(name for name in SHOWN if "*" not in name), *(part for parts in RATIOS.values() for part in parts)}
)
MAIN_PREFIXES = tuple(pattern.removesuffix("*") for pattern in SHOWN if "*" in pattern)
"""The metrics that pages read, of a run that may have tens of thousands."""


@dataclass(frozen=True)
class Series:
    """A metric in order of time. Steps that were rolled back and repeated occur twice."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    is_lost: Sequence[bool] = ()
    """Marks points that were rolled back; empty if there are none."""
    lows: Sequence[float] = ()
    """Minimum of the points that each value stands for; empty if these are the values themselves."""
    highs: Sequence[float] = ()
    scale: float = 1.0
    """By which a ratio was divided."""

    def committed_points(self) -> tuple[list[float], list[float]]:
        """Return steps and values without those that were rolled back."""
        return self._committed(self.steps), self._committed(self.values)

    def committed_ranges(self) -> tuple[list[float], list[float]]:
        """Return the lows and highs of the committed points."""
        return self._committed(self.lows or self.values), self._committed(self.highs or self.values)

    def _committed(self, numbers: Sequence[float]) -> list[float]:
        if not self.is_lost:
            return list(numbers)
        return [number for number, lost in zip(numbers, self.is_lost, strict=True) if not lost]


Curves = Mapping[str, Series]
"""Series by the metric's name."""


def run_curves(ledger: Ledger, run_id: str) -> Curves:
    """Return the metrics that pages show, the throughput and the MFU, given the run's full id."""
    main = metric_summaries(ledger, run_id, MAIN_NAMES, prefixes=MAIN_PREFIXES)
    summaries = {summary.name: summary for summary in main}
    names = {
        name: None
        for pattern in SHOWN
        for name in fnmatch.filter(summaries, pattern)
        if not fnmatch.fnmatchcase(name, VALIDATION_ERROR) and name != "reward_std"
    }
    curves = {name: metric_curve(ledger, run_id, name, summaries[name].num_points) for name in names}
    processors = [attempt.processor for attempt in ledger.attempts(run_id)[-1:] if attempt.processor is not None]
    scales = {THROUGHPUT: 1.0, MFU: next((dense_bf16_flops(processor.model) for processor in processors), None)}
    for name, (numerator, divisor) in RATIOS.items():
        if numerator in summaries and divisor in summaries and (scale := scales[name]) is not None:
            parts = (_committed(ledger, run_id, part, summaries[part].num_points) for part in (numerator, divisor))
            curves[name] = _ratio(name, *parts, scale=scale)
    return curves


def metric_curve(ledger: Ledger, run_id: str, name: str, num_points: int) -> Series:
    """Return a metric: each point, or if it has more than `MAX_POINTS` their columns and the points at both ends."""
    if num_points > MAX_POINTS:
        return _long_series(ledger, run_id, name)
    committed = metric_series(ledger, run_id, name, max_points=MAX_POINTS)
    lost = metric_series(ledger, run_id, name, max_points=MAX_POINTS, lost=True)
    order = np.argsort(np.concatenate([committed.at_s, lost.at_s]), kind="stable")
    return Series(
        name=name,
        steps=np.concatenate([committed.steps, lost.steps])[order].tolist(),
        values=np.concatenate([committed.values, lost.values])[order].tolist(),
        is_lost=(order >= len(committed.steps)).tolist(),
    )


def _long_series(ledger: Ledger, run_id: str, name: str) -> Series:
    """Return the points at both ends, the columns between them, and the columns of lost points."""
    window = window_curve(ledger, run_id, name, columns=MAX_POINTS)
    width, starts = window.step_width, window.committed.steps
    whole = 1 << 30
    if len(starts):
        head = metric_series(ledger, run_id, name, x0=int(starts[0]), x1=int(starts[:2][-1]) + width, max_points=whole)
        tail = metric_series(ledger, run_id, name, x0=int(starts[-2:][0]), max_points=whole)
        head, tail = _part(head, slice(None, ENDS)), _part(tail, slice(-ENDS, None))
        # A column stands where it ends, for its value is the last one of its points.
        steps = np.minimum(starts + width - 1, tail.steps[0] - 1)
        is_between = (starts < tail.steps[0]) & (steps > head.steps[-1])
        committed = _columns(window.committed, steps, is_between)
        parts = [(head.steps, *[head.values] * 3), committed, (tail.steps, *[tail.values] * 3)]
    else:
        parts = []
    lost = window.lost
    parts.append(_columns(lost, lost.steps + width - 1, np.full(len(lost.steps), True)))
    steps, values, lows, highs = (np.concatenate(numbers) for numbers in zip(*parts, strict=True))
    is_lost = np.arange(len(steps)) >= len(steps) - len(lost.steps)
    order = np.argsort(steps, kind="stable")
    return Series(name, *(numbers[order].tolist() for numbers in (steps, values, is_lost, lows, highs)))


def _part(curve: Curve, part: slice) -> Curve:
    return Curve(curve.steps[part], curve.values[part], curve.at_s[part])


def _columns(columns: CurveColumns, steps: Numbers, is_shown: npt.NDArray[np.bool_]) -> tuple[Numbers, ...]:
    return tuple(numbers[is_shown] for numbers in (steps, columns.last, columns.minimum, columns.maximum))


def _committed(ledger: Ledger, run_id: str, name: str, num_points: int) -> tuple[Numbers, Numbers]:
    """Return steps and values of all committed points, or of the last one in each of `MAX_POINTS` columns."""
    if num_points > MAX_POINTS:
        columns = window_curve(ledger, run_id, name, columns=MAX_POINTS).committed
        return columns.steps, columns.last
    curve = metric_series(ledger, run_id, name, max_points=MAX_POINTS)
    return curve.steps.astype(float), curve.values


def _ratio(name: str, numerator: tuple[Numbers, Numbers], divisor: tuple[Numbers, Numbers], *, scale: float) -> Series:
    steps, above, below = np.intersect1d(numerator[0], divisor[0], return_indices=True)
    parts = np.array_split(np.arange(len(steps)), max(1, min(RATIO_SEGMENTS, len(steps)))) if len(steps) else []
    sums = [(numerator[1][above[part]].sum(), divisor[1][below[part]].sum()) for part in parts]
    return Series(
        name=name,
        steps=[int(steps[part[-1]]) for part in parts],
        values=[float(total) / max(1e-9, float(spent)) / scale for total, spent in sums],
        scale=scale,
    )
