import hashlib
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.base.seeds import mix64
from assay.data.loader.order import EpochOrder, Geometry, lanes_of_reader

GOLDEN = Path(__file__).parents[3] / "golden" / "order.json"

sizes = st.lists(st.integers(0, 30), min_size=1, max_size=20)


def order_of(group_sizes, *, seed=0, epoch=0):
    identities = mix64(np.arange(len(group_sizes), dtype=np.uint64))
    return EpochOrder(identities, np.array(group_sizes, np.int64), seed=seed, epoch=epoch)


def rows_of(order, start, stop):
    return [(span.group, row) for span in order.spans(start, stop) for row in range(span.first, span.stop)]


@settings(max_examples=200, deadline=None)
@given(sizes, st.integers(0, 3), st.lists(st.integers(0, 600), max_size=5))
def test_the_pieces_of_an_epoch_hold_each_selected_row_once_wherever_it_is_cut(group_sizes, epoch, cuts):
    order = order_of(group_sizes, epoch=epoch)
    edges = [0, *sorted(min(cut, order.num_rows) for cut in cuts), order.num_rows]
    rows = [row for start, stop in pairwise(edges) for row in rows_of(order, start, stop)]
    assert rows == rows_of(order, 0, order.num_rows)
    assert sorted(rows) == [(group, row) for group, size in enumerate(group_sizes) for row in range(size)]
    assert all(span.stop > span.first for span in order.spans(0, order.num_rows)), "nothing is read for no row"


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 2000), st.integers(1, 64), st.integers(1, 9), st.integers(1, 9))
def test_the_windows_of_all_lanes_tile_the_epoch_and_feed_the_steps_that_they_say(n, lanes, m, window_steps):
    geometry = Geometry(num_rows=n, lanes=lanes, rows_per_lane=m, window_steps=window_steps)
    ranges = [geometry.window_range(lane, w) for lane in range(lanes) for w in range(geometry.num_windows)]
    assert [row for start, stop in ranges for row in range(start, stop)] == list(range(n))
    for lane in range(lanes):
        for window in range(geometry.num_windows):
            start, stop = geometry.window_range(lane, window)
            assert sum(geometry.step_rows(lane, window)) == stop - start
    assert sum(geometry.steps_in_window(w) for w in range(geometry.num_windows)) == geometry.steps_per_epoch


@given(st.integers(1, 2000), st.integers(1, 64), st.integers(1, 9))
def test_lanes_differ_by_one_row_and_every_step_has_a_row(n, lanes, m):
    geometry = Geometry(num_rows=n, lanes=lanes, rows_per_lane=m, window_steps=4)
    lengths = [stop - start for start, stop in map(geometry.lane_range, range(lanes))]
    assert max(lengths) - min(lengths) <= 1
    for step in range(geometry.steps_per_epoch):
        assert sum(geometry.rows_in_step(lane, step) for lane in range(lanes)) > 0


def test_epochs_and_seeds_have_orders_of_their_own():
    sizes_of_groups = [1] * 50
    orders = [order_of(sizes_of_groups, seed=seed, epoch=epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(rows_of(order, 0, 50)) for order in orders}) == 4


def test_appended_row_groups_leave_the_old_ones_in_their_relative_order():
    before = [group for group, _ in rows_of(order_of([1] * 40), 0, 40)]
    after = [group for group, _ in rows_of(order_of([1] * 60), 0, 60)]
    assert [group for group in after if group < 40] == before


def test_the_order_is_the_one_that_earlier_versions_served():
    """A change here breaks the resume and the audit of every run that exists: it needs a new major version."""
    order = order_of([(7 * group) % 13 for group in range(500)], seed=3, epoch=2)
    digest = hashlib.sha256(json.dumps(rows_of(order, 0, order.num_rows)).encode()).hexdigest()
    assert digest == json.loads(GOLDEN.read_text())["order"]


@given(st.integers(1, 40), st.integers(1, 40))
def test_any_number_of_readers_share_the_lanes_out(num_readers, num_lanes):
    shares = [lanes_of_reader(reader, num_readers, num_lanes) for reader in range(num_readers)]
    assert [lane for share in shares for lane in share] == list(range(num_lanes))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_row_groups_without_rows_are_passed_over_wherever_they_come() -> None:
    order = order_of([0, 3, 0, 0, 2, 0])
    assert sorted(order.spans(0, 5)) == [(1, 0, 3), (4, 0, 2)]
    for start in range(5):
        assert [span.stop - span.first for span in order.spans(start, start + 1)] == [1]


def test_nothing_has_no_steps_and_no_windows():
    geometry = Geometry(num_rows=0, lanes=4, rows_per_lane=2, window_steps=3)
    assert (geometry.steps_per_epoch, geometry.num_windows, geometry.rows_in_step(0, 0)) == (0, 0, 0)
    assert geometry.window_range(3, 0) == (0, 0) and order_of([0, 0]).spans(0, 0) == []


def test_a_step_after_the_last_has_no_rows():
    geometry = Geometry(num_rows=50, lanes=4, rows_per_lane=2, window_steps=3)
    assert [geometry.rows_in_step(3, step) for step in (5, 6, 7, 100)] == [2, 1, 0, 0]
    assert (geometry.steps_per_epoch, geometry.num_windows) == (7, 3)
    assert [geometry.steps_in_window(window) for window in range(3)] == [3, 3, 1]
