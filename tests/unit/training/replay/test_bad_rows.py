import math

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from assay.training.replay.bad_rows import RowLocation, RowLosses, lifting, narrow


def rows(count: int) -> list[RowLocation]:
    return [RowLocation(0, 0, row, 100 + row) for row in range(count)]


@settings(deadline=None, max_examples=100)
@given(count=st.integers(1, 64), data=st.data())
def test_halving_names_exactly_the_bad_rows_in_few_passes(count: int, data) -> None:
    bad = set(data.draw(st.lists(st.integers(0, count - 1), max_size=4)))
    passes = 0

    def is_bad(some) -> bool:
        nonlocal passes
        passes += 1
        return any(row.row in bad for row in some)

    assert {row.row for row in narrow(rows(count), is_bad)} == bad
    assert passes <= 1 + 2 * len(bad) * math.ceil(math.log2(2 * count))


def test_rows_that_are_bad_only_together_are_returned_together() -> None:
    found = narrow(rows(8), lambda some: {2, 6} <= {row.row for row in some})
    assert {2, 6} <= {row.row for row in found}


@settings(deadline=None, max_examples=50)
@example(rows=[(0.0, 2), (2.0, 1), (2.0, 2)], limit=0.75)
@given(
    rows=st.lists(st.tuples(st.floats(0, 10), st.integers(1, 5)), min_size=1, max_size=20),
    limit=st.floats(0, 10),
)
def test_without_the_named_rows_the_mean_is_within_the_limit_and_one_fewer_would_not_do(rows, limit) -> None:
    means, weights = np.array(rows, np.float64).T
    losses = RowLosses(means * weights, weights)
    chosen = lifting(losses, limit)
    retained = np.delete(np.arange(len(rows)), chosen)
    assert not len(retained) or losses.where(retained).mean() <= limit
    if chosen:
        last = min(reversed(chosen), key=lambda index: losses.means()[index])  # of equals, the later one
        assert losses.where(np.append(retained, last)).mean() > limit * (1 - 1e-12)


def test_a_rows_loss_is_per_what_it_weighs_and_a_row_without_weight_has_none() -> None:
    losses = RowLosses(np.array([6.0, 2.0, 0.0]), np.array([3.0, 1.0, 0.0]))
    assert losses.means().tolist() == [2.0, 2.0, 0.0]
    assert losses.mean() == 2.0
    assert math.isnan(losses.where(np.array([2])).mean())
