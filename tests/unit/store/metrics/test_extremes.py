import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from assay.store.metrics.extremes import MAX_BUCKETS, VALUE, Overview, Table, downsampled, drop_repeated

Values = npt.NDArray[np.float64]
CURVES = arrays(np.float64, st.integers(1, 3_000), elements=st.floats(width=32))


def curve(values: Values) -> Table:
    locations = np.arange(len(values), dtype=float)
    return np.stack([locations, locations * 2, values], axis=1)


def extremes(values: Values) -> tuple[float, float] | None:
    numbers = values[~np.isnan(values)]
    return (float(numbers.min()), float(numbers.max())) if len(numbers) else None


@settings(max_examples=60, deadline=None)
@given(values=CURVES, max_points=st.integers(2, 400))
def test_downsampling_keeps_real_points_in_order_with_the_extremes(values: Values, max_points: int) -> None:
    points = curve(values)
    few = downsampled(points, max_points)
    assert len(few) <= max(max_points, 2)
    assert np.all(np.diff(few[:, 0]) > 0)
    np.testing.assert_array_equal(few, points[few[:, 0].astype(int)])
    assert extremes(few[:, VALUE]) == extremes(values)


@settings(max_examples=60, deadline=None)
@given(values=CURVES, cuts=st.lists(st.integers(0, 3_000), max_size=5))
def test_an_overview_does_not_depend_on_how_the_curve_arrived(values: Values, cuts: list[int]) -> None:
    points = curve(values)
    grown = Overview()
    for part in np.split(points, sorted(min(cut, len(points)) for cut in cuts)):
        grown = grown.extended(part)
    at_once = Overview().extended(points)
    assert (grown.num_points, grown.bucket_points) == (at_once.num_points, at_once.bucket_points)
    assert len(grown.extremes) <= 2 * MAX_BUCKETS
    assert extremes(grown.extremes[:, VALUE]) == extremes(values)
    np.testing.assert_array_equal(grown.extremes, at_once.extremes)


def test_a_short_curve_is_its_own_overview() -> None:
    points = curve(np.array([1.0, np.nan, np.nan, 1.0]))
    np.testing.assert_array_equal(drop_repeated(Overview().extended(points).extremes), points)
