"""Windows are put together from portions of the stretches around them: how well that mixes, what it costs."""

from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.base.seeds import mix64
from assay.data.loader.config import BucketedLayout, LoaderConfig, PackedLayout, PaddedLayout
from assay.data.loader.loader import Loader
from assay.data.loader.order import Geometry, WindowIndex
from assay.data.loader.windows import RaggedRows
from assay.records.cursor import Cursor

COLUMNS = ("input_ids", "spans", "label", "language")
LAYOUTS = [PaddedLayout(), BucketedLayout(), PackedLayout(type="packed", sequence_tokens=20)]

geometries = st.builds(
    Geometry,
    num_rows=st.integers(1, 3000),
    lanes=st.sampled_from([1, 2, 8]),
    rows_per_lane=st.integers(1, 9),
    window_steps=st.integers(1, 9),
    shuffle_radius=st.integers(0, 5),
)


class Groups:
    """Row groups of one size, whose rows nobody reads."""

    fingerprint = "0" * 64

    def __init__(self, group_rows: int, num_groups: int) -> None:
        self._group_rows = group_rows
        self.num_rows = np.full(num_groups, group_rows, np.int64)
        self.identities = mix64(np.arange(num_groups, dtype=np.uint64))

    def row_ids(self, group: int) -> np.ndarray:
        return np.arange(group * self._group_rows, (group + 1) * self._group_rows, dtype=np.uint64)

    def read(self, group: int, columns: Any) -> pa.Table:
        raise AssertionError("the order is told without reading")

    def shard_of(self, group: int) -> str:
        return str(group)


def variance_over_uniform(loader: Loader, group_rows: int) -> float:
    """Of a step's mean where each row group is a kind of its own, over that of a uniform shuffle of very many.

    Two rows of a lane's step are a pair of its window's rows, drawn at random; lanes have no group in common.
    """
    geometry, same = loader.geometry, []
    for window in range(geometry.num_whole):
        for lane in range(geometry.lanes):
            counts = np.unique(loader.rows_of_window(0, lane, window) // group_rows, return_counts=True)[1]
            same.append((counts * (counts - 1)).sum() / (counts.sum() * (counts.sum() - 1)))
    return 1 + (geometry.rows_per_lane - 1) * float(np.mean(same))


def config_of(**changes) -> LoaderConfig:
    defaults = {
        "lanes": 2,
        "global_batch_size": 8,
        "window_rows": 40,
        "shuffle_radius_windows": 2,
        "threads": 1,
    }
    return LoaderConfig(**defaults | changes)


def rows_of(share) -> list[list[int]]:
    return [[row for batch in lane.micro_batches for row in batch.row_ids.tolist()] for lane in share.lanes]


def epoch_of(loader: Loader, epoch: int = 0) -> list[list[list[int]]]:
    shares = loader.shares(Cursor(epoch=epoch), range(loader.config.lanes), loader.steps_per_epoch)
    return [rows_of(share) for share in shares]


@settings(max_examples=100, deadline=None)
@given(geometries)
def test_each_portion_of_a_stretch_goes_to_one_window_that_is_near(geometry: Geometry) -> None:
    selected = [
        (segment_slice, window)
        for window in range(geometry.num_windows)
        for segment_slice in geometry.slices_of_window(window)
    ]
    whole = [(segment, number) for segment in range(geometry.num_whole) for number in range(geometry.num_slices)]
    last = [(geometry.num_whole, 0)] if geometry.num_windows > geometry.num_whole else []
    assert sorted(segment_slice for segment_slice, _ in selected) == whole + last
    assert all(abs(segment_slice[0] - window) <= geometry.radius for segment_slice, window in selected)
    counts = Counter(window for _, window in selected)
    assert all(counts[window] == geometry.num_slices for window in range(geometry.num_whole))
    assert geometry.num_windows - geometry.num_whole in (0, 1)


@settings(max_examples=100, deadline=None)
@given(geometries, st.integers(0, 2**64 - 1))
def test_windows_are_as_large_as_their_stretches_and_tile_the_epoch(geometry: Geometry, key: int) -> None:
    windows = geometry.windows_at(np.arange(geometry.num_rows), key)
    for lane in range(geometry.lanes):
        start, stop = geometry.lane_range(lane)
        sizes = np.bincount(windows[start:stop], minlength=geometry.num_windows)
        assert sizes.tolist() == [sum(geometry.step_rows(lane, window)) for window in range(geometry.num_windows)]


@settings(max_examples=12, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(any),
    shuffle_radius=st.integers(0, 4),
    window_rows=st.integers(4, 60),
    layout=st.sampled_from(LAYOUTS),
    data=st.data(),
)
def test_a_resume_anywhere_goes_on_as_if_nothing_had_been(
    fake_source, sizes, shuffle_radius, window_rows, layout, data
) -> None:
    source = fake_source(sizes)
    loader = Loader(
        source,
        config_of(shuffle_radius_windows=shuffle_radius, window_rows=window_rows, layout=layout),
        COLUMNS,
    )
    whole = epoch_of(loader) + epoch_of(loader, 1)
    for epoch in (whole[: loader.steps_per_epoch], whole[loader.steps_per_epoch :]):
        assert sorted(row for step in epoch for lane in step for row in lane) == source.all_rows
    step = data.draw(st.integers(0, len(whole) - 1))
    shares = loader.shares(loader.cursor_at(step), range(2), len(whole) - step)
    assert [rows_of(share) for share in shares] == whole[step:]


def test_the_rows_that_the_order_names_for_a_window_are_those_that_are_served(fake_source) -> None:
    loader = Loader(fake_source([37] * 20), config_of(), COLUMNS)
    for epoch in (0, 1):
        steps, per_window = epoch_of(loader, epoch), loader.config.window_steps
        for window in range(loader.geometry.num_windows):
            served = steps[window * per_window : (window + 1) * per_window]
            for lane in range(2):
                named = loader.rows_of_window(epoch, lane, window)
                assert sorted(named.tolist()) == sorted(row for step in served for row in step[lane])


def test_every_row_group_is_read_once_and_what_was_read_goes_with_its_windows(fake_source) -> None:
    source = fake_source([10] * 120)
    loader = Loader(source, config_of(lanes=1, global_batch_size=4), COLUMNS)
    (windows,) = loader.lane_windows([0]).values()
    most = 0
    for window in range(loader.geometry.num_windows):
        windows.read(WindowIndex(0, window))
        num_held = sum(len(rows.row_ids) for rows in windows._slices.values())
        most = max(most, num_held)
    assert most == 2 * 40, "of a spread of two: two windows' rows"
    assert loader.config.buffer_bytes_per_token * 40 == 2 * (most + 2 * 40), "besides, the window in use and the next"
    assert (num_held, max(source.reads.values()), len(source.reads)) == (0, 1, 120)


def test_a_first_step_reads_the_stretches_around_its_window_and_no_other(fake_source) -> None:
    source = fake_source([20] * 100)
    loader = Loader(source, config_of(lanes=1, global_batch_size=4), COLUMNS)
    for step in (0, 250, loader.steps_per_epoch - 10):
        source.reads.clear()
        next(islice(loader.shares(loader.cursor_at(step), range(1), 1), 1))
        assert source.reads.total() <= (2 * 2 + 1) * 3


def test_neighbours_in_a_file_are_in_other_windows_and_meet_others_in_every_epoch(fake_source) -> None:
    loader = Loader(fake_source([400] * 4), config_of(lanes=1, global_batch_size=4), COLUMNS)
    together = []
    for epoch in range(4):
        window_of = np.empty(1600, np.int64)
        for window in range(loader.geometry.num_windows):
            window_of[loader.rows_of_window(epoch, 0, window).astype(np.int64)] = window
        assert (window_of[1:] == window_of[:-1]).mean() < 0.1
        together.append(window_of[5:] == window_of[:-5])
        assert 0.1 < together[-1].mean() < 0.3, "there are five portions"
    assert (together[0] & together[1]).mean() < 0.08


@pytest.mark.parametrize(("shuffle_radius", "least", "most"), [(0, 10, 13), (None, 2, 3)])
def test_by_default_a_steps_mean_varies_at_most_three_times_as_under_a_uniform_shuffle(
    shuffle_radius, least, most
) -> None:
    """Steps of 256 rows on 8 lanes, row groups of 1,500 rows."""
    config = LoaderConfig(global_batch_size=256)
    if shuffle_radius is not None:
        config = config.model_copy(update={"shuffle_radius_windows": shuffle_radius})
    assert least < variance_over_uniform(Loader(Groups(1500, 700), config, ()), 1500) < most


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.type)
def test_damage_takes_rows_from_the_windows_around_and_moves_no_other_padded_row(fake_source, layout) -> None:
    source = fake_source([30] * 20)
    config = config_of(layout=layout, on_damage="quarantine")
    whole = epoch_of(Loader(source, config, COLUMNS))
    source.damaged = {7}
    loader = Loader(source, config, COLUMNS)
    gone = set(range(210, 240))
    shares = list(loader.shares(Cursor(), range(2), loader.steps_per_epoch))
    served = [rows_of(share) for share in shares]
    assert {row for step in served for lane in step for row in lane} == set(range(600)) - gone
    if isinstance(layout, PaddedLayout):
        assert served == [[[row for row in lane if row not in gone] for lane in step] for step in whole]
    per_window = config.window_steps
    for lane in range(2):
        for window in range(loader.geometry.num_windows):
            here = shares[window * per_window : (window + 1) * per_window]
            quarantined = {item.row_group for share in here for item in share.lanes[lane].quarantined}
            lacks = gone & set(loader.rows_of_window(0, lane, window).tolist())
            assert quarantined == ({7} if lacks else set())


def test_what_was_skipped_at_the_start_stays_out_until_the_epoch_ends(fake_source) -> None:
    """It lies in two stretches, one of which is read later: a window would have half of it."""
    source = fake_source([50] * 16)
    config = config_of(lanes=1, global_batch_size=4, on_damage="quarantine")
    loader = Loader(source, config, COLUMNS)
    (windows,) = loader.lane_windows([0]).values()
    victim = loader.spans(WindowIndex(0, 2), 0)[-1].group
    assert victim == loader.spans(WindowIndex(0, 3), 0)[0].group
    for window in range(loader.geometry.num_windows):
        rows = windows.read(WindowIndex(0, window), {victim} if window == 0 else ())
        assert not (rows.present & (rows.row_ids // 50 == victim)).any()
    assert windows.read(WindowIndex(1, 0)).present.all()


@pytest.mark.parametrize(("most", "bits"), [(65_535, 16), (65_536, 32), (-1, 32)])
def test_what_is_kept_for_later_windows_takes_16_bits_where_they_are_enough(most: int, bits: int) -> None:
    parts = [
        RaggedRows(np.array([3, most, 5], np.int32), np.array([0, 2, 3])),
        RaggedRows(np.array([7, 8], np.int32), np.array([0, 2])),
    ]
    selected = RaggedRows.concatenate(parts).take(np.array([2, 0]))
    assert [selected.row(row).tolist() for row in range(2)] == [[7, 8], [3, most]]
    assert selected.values.dtype.itemsize * 8 == bits
    assert selected.padded(slice(0, 2)).values.tolist() == [[7, 8], [3, most]]


LISTS = st.lists(st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(0, 65_535), max_size=5), max_size=6)


def ragged(lists: list[list[int]]) -> RaggedRows:
    offsets = np.cumsum([0, *map(len, lists)])
    return RaggedRows(np.array([number for list_ in lists for number in list_], np.int32), offsets)


@given(parts=st.lists(LISTS, max_size=3), data=st.data())
def test_lists_that_are_put_together_and_taken_are_the_same_lists(parts: list[list[list[int]]], data) -> None:
    """Any numbers, rows without any, parts without rows; what is taken has memory of its own."""
    whole = [row for part in parts for row in part]
    chosen = data.draw(st.lists(st.sampled_from(range(len(whole))), max_size=8)) if whole else []
    together = RaggedRows.concatenate([ragged(part) for part in parts])
    selected = together.take(np.array(chosen, np.intp))
    for found, expected in ((together, whole), (selected, [whole[index] for index in chosen])):
        assert [found.row(index).tolist() for index in range(len(expected))] == expected
        assert found.lengths.tolist() == [len(row) for row in expected]
        assert len(found.values) == found.offsets[-1], "nothing else is kept"
    assert not np.shares_memory(selected.values, together.values)
