"""What came of a change of data: which slice of the metric moved between two runs, and what would prove why.

The two were evaluated on rows of two datasets, so nothing is paired: a difference has the interval that follows
from both intervals (MOVER, Zou & Donner 2008), widened so that all slices hold together (Bonferroni).
"""

from scipy.special import ndtri

from assay.records.data_changes import MovedMetric, MovedSlice
from assay.records.evaluation import ClassifierMetrics, Estimate, Evaluation, ScoreMetrics
from assay.statistics.robust import difference_interval

MAX_MOVED = 5
CONFIDENCE = 0.95


def moved_metric(before: Evaluation, after: Evaluation, *, dataset: str, held_s: float) -> MovedMetric | None:
    """Compare the metric of two runs by slice. `dataset` is that of the run before, `held_s` the device time
    of the run after. None if they share no metric with intervals."""
    name = after.headline.metric.name
    old, new = _estimate(before.overall, name), _estimate(after.overall, name)
    if old is None or new is None:
        return None
    known = {(slice_part.column, slice_part.value): _estimate(slice_part.metrics, name) for slice_part in before.slices}
    pairs = [
        (slice_part.column, slice_part.value, was, now)
        for slice_part in after.slices
        if (was := known.get((slice_part.column, slice_part.value))) and (now := _estimate(slice_part.metrics, name))
    ]
    slices = [_moved(*pair, together=len(pairs)) for pair in pairs]
    significant_ones = sorted(
        (slice_part for slice_part in slices if not slice_part.low <= 0.0 <= slice_part.high),
        key=lambda slice_part: -abs(slice_part.after - slice_part.before),
    )
    hours = held_s / 3_600.0 if held_s else None
    return MovedMetric(
        metric=after.headline.metric.title, overall=_moved("", "", old, new, together=1),
        slices=tuple(significant_ones[:MAX_MOVED]), num_slices=len(slices), run_id=after.run_id, dataset=dataset,
        device_hours=hours,
    )  # fmt: skip


def _estimate(metrics: ClassifierMetrics | ScoreMetrics, name: str) -> Estimate | None:
    found = next((measured.estimate for measured in metrics.measured if measured.metric.name == name), None)
    return found if found is not None and found.low is not None and found.high is not None else None


def _moved(column: str, value: str, before: Estimate, after: Estimate, *, together: int) -> MovedSlice:
    assert before.low is not None and before.high is not None
    assert after.low is not None and after.high is not None
    wider = float(ndtri(0.5 + 0.5 * (1.0 - (1.0 - CONFIDENCE) / together)) / ndtri(0.5 + CONFIDENCE / 2.0))
    low, high = difference_interval(
        (before.value, before.low, before.high), (after.value, after.low, after.high), widened=wider
    )
    return MovedSlice(column=column, value=value, before=before.value, after=after.value, low=low, high=high)
