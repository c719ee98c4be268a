"""What is said of a small dataset's order, of which every window is read, is what plain loops count."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assay.base.errors import DamagedDataError
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.index import index_dataset
from assay.data.dataset.split import DatasetView, whole_view
from assay.data.loader import mixing as mixing_module
from assay.data.loader.config import BucketedLayout, LoaderConfig, PaddedLayout
from assay.data.loader.loader import Loader
from assay.data.loader.mixing import (
    OrderFix,
    TraitMixing,
    _order_fix,
    _position_correlation,
    _samples,
    _steps,
    _trait,
    _window_recurrence,
    measure_mixing,
)
from assay.records.cursor import Cursor

GROUP_ROWS = [23, 40, 1, 37, 30, 29]
NUM_ROWS = sum(GROUP_ROWS)


def view_of(folder: Path, group_rows: list[int]) -> DatasetView:
    """Row r is of the kind r // 40, has 1 + r * r % 7 tokens, and the size r * 37 % rows, each once."""
    rows = np.arange(sum(group_rows))
    table = pa.table(
        {
            "input_ids": pa.array([[1] * (1 + row * row % 7) for row in rows.tolist()], pa.list_(pa.int32())),
            "label": pa.array(np.zeros(len(rows), np.int8)),
            "the kind": pa.array([f"kind {row // 40}" for row in rows.tolist()]),
            "size": pa.array(rows * 37 % len(rows)),
        }
    )
    (folder / "source").mkdir(parents=True)
    with pq.ParquetWriter(folder / "source" / "a.parquet", table.schema) as writer:
        for start, stop in pairwise(np.cumsum([0, *group_rows]).tolist()):
            writer.write_table(table.slice(start, stop - start))
    index_dataset(str(folder / "source"), folder / "dataset")
    return whole_view(Dataset.open(folder / "dataset"))


@pytest.fixture(scope="module")
def view(tmp_path_factory) -> DatasetView:
    return view_of(tmp_path_factory.mktemp("mixing"), GROUP_ROWS)


def config_of(**changes) -> LoaderConfig:
    """Twenty steps, in six windows of three and one of two."""
    defaults = {"lanes": 2, "global_batch_size": 8, "window_rows": 12, "layout": PaddedLayout()}
    return LoaderConfig(**{"threads": 1, "shuffle_radius_windows": 0} | defaults | changes)


def rows_of_windows(loader: Loader) -> list[list[list[int]]]:
    """[window, step]: the rows that are learned in the first epoch."""
    shares = loader.shares(Cursor(), range(loader.config.lanes), loader.steps_per_epoch)
    steps = [
        [row for lane in share.lanes for batch in lane.micro_batches for row in batch.row_ids.tolist()]
        for share in shares
    ]
    per_window = loader.config.window_steps
    return [steps[start : start + per_window] for start in range(0, len(steps), per_window)]


def plain_figures(values: np.ndarray, windows: list[list[list[int]]]) -> tuple[float, float]:
    """Variation, and correlation of neighbours."""
    centred = values - values.mean(axis=0)
    squares, products = [], []
    for steps in windows:
        sums = [sum(centred[row] for row in rows) / len(rows) ** 0.5 for rows in steps]
        squares += [float(sum_ @ sum_) for sum_ in sums]
        products += [float(one @ other) for one, other in pairwise(sums)]
    uniform = float((centred**2).sum(axis=1).mean())
    return (np.mean(squares) / uniform) ** 0.5, np.mean(products) / np.mean(squares)


@pytest.mark.parametrize("layout", [PaddedLayout(), BucketedLayout()], ids=lambda layout: layout.type)
def test_traits_vary_over_the_steps_as_much_as_plain_loops_say(view: DatasetView, layout) -> None:
    config = config_of(layout=layout)
    rows = np.arange(NUM_ROWS)
    lengths = 1 + rows * rows % 7
    values = {
        "the kind": (rows[:, None] // 40 == np.arange(4)).astype(float),
        "size": (rows * 37 % NUM_ROWS)[:, None].astype(float),
        "tokens a row": np.array([[float((lengths < length).sum())] for length in lengths]),
    }
    if not isinstance(layout, PaddedLayout):
        del values["tokens a row"]  # what bucketing is for
    windows = rows_of_windows(Loader(view, config, ()))
    expected = {name: plain_figures(numbers, windows) for name, numbers in values.items()}
    mixing = measure_mixing(view, config)
    assert {trait.name for trait in mixing.traits} == expected.keys()
    for trait in mixing.traits:
        assert (trait.variation, trait.neighbours) == pytest.approx(expected[trait.name], rel=1e-9), trait.name
    variations = [trait.variation for trait in mixing.traits]
    assert variations == sorted(variations, reverse=True) and mixing.traits[0].name == "the kind"
    worst = max(trait.excess for trait in mixing.traits)
    assert mixing.fix == _order_fix(Loader(view, config, ()), view, mixing.position_correlation, worst) is not None


def test_a_rows_place_is_a_draw_from_its_windows_steps_in_both_epochs(view: DatasetView) -> None:
    """Every row is looked at; the last window has fewer steps than the others."""
    loader = Loader(view, config_of(), ())
    rng = np.random.default_rng(0)
    positions = []
    for epoch in (0, 1):
        first, steps = np.zeros(NUM_ROWS), np.zeros(NUM_ROWS)
        for window in range(7):
            for lane in range(2):
                lane_rows = loader.rows_of_window(epoch, lane, window).astype(np.int64)
                first[lane_rows], steps[lane_rows] = 3 * window, 3 if window < 6 else 2
        positions.append(first + rng.random(NUM_ROWS) * steps)
    found = _position_correlation(loader, view)
    assert found == pytest.approx(np.corrcoef(positions)[0, 1], rel=1e-9)
    assert measure_mixing(view, config_of()).position_correlation == found


def test_twenty_steps_are_judged_and_nineteen_are_not(tmp_path: Path) -> None:
    for group_rows, is_measured in ([80, 80], True), ([80, 72], False):
        small = view_of(tmp_path / str(sum(group_rows)), group_rows)
        mixing = measure_mixing(small, config_of())
        assert bool(mixing.traits) == (mixing.position_correlation != 0.0) == is_measured
        assert mixing.fix is None or is_measured


def test_steps_whose_rows_are_damaged_do_not_count(view: DatasetView, monkeypatch) -> None:
    """All but the first row group are: some rows are left, of far fewer steps than twenty in all."""
    read = DatasetView.read

    def read_first(self, group, columns):
        if group:
            raise DamagedDataError("changed")
        return read(self, group, columns)

    config = config_of(on_damage="quarantine", window_rows=8 * NUM_ROWS)
    assert measure_mixing(view, config).traits, "twenty steps"
    monkeypatch.setattr(DatasetView, "read", read_first)
    windows = rows_of_windows(Loader(view, config, ()))
    num_steps = sum(bool(rows) for steps in windows for rows in steps)
    assert 0 < num_steps < 20
    mixing = measure_mixing(view, config)
    assert (mixing.traits, np.isfinite(mixing.pair_recurrence)) == ((), True)


def test_a_step_counts_where_one_of_its_rows_is_left(view: DatasetView, monkeypatch) -> None:
    """Twenty of forty are enough, wherever the rows of the row group that is left happen to be."""
    read = DatasetView.read

    def read_first(self, group, columns):
        if group:
            raise DamagedDataError("changed")
        return read(self, group, columns)

    monkeypatch.setattr(DatasetView, "read", read_first)
    seen = set()
    for seed in range(12):
        config = config_of(on_damage="quarantine", global_batch_size=4, window_rows=8 * NUM_ROWS, seed=seed)
        windows = rows_of_windows(Loader(view, config, ()))
        num_steps = sum(bool(rows) for steps in windows for rows in steps)
        assert bool(measure_mixing(view, config).traits) == (num_steps >= 20)
        seen.add(num_steps)
    assert {19, 20} <= seen


def test_pairs_of_a_step_are_looked_up_in_the_next_epochs_windows(tmp_path: Path) -> None:
    """Steps of two rows have one pair, however pairs are drawn; a row alone, or served by no step, has none."""
    small = view_of(tmp_path, [16, 32, 8, 64, 8])
    loader = Loader(small, config_of(global_batch_size=2, window_rows=16), ())
    window_of = np.full(128, -1)
    for lane in range(2):
        for window in range(4):
            window_of[loader.rows_of_window(1, lane, window).astype(np.int64)] = window
    samples, steps, same = list(_samples(loader)), [], []
    for sample in samples:
        served = _steps(loader, sample, np.arange(len(sample.row_ids)), epoch=0)
        served[::5] = -1
        for step in range(16):
            rows = sample.row_ids[served == step].tolist()
            same += [window_of[rows[0]] == window_of[rows[1]]] if len(rows) == 2 else []
        steps.append(served)
    assert 30 < len(same) < 60 and 0 < np.mean(same) < 1
    assert _window_recurrence(loader, small, samples, steps) == pytest.approx(4 * np.mean(same), rel=1e-12)
    unserved = [np.full(len(step), -1) for step in steps]
    assert _window_recurrence(loader, small, samples, unserved) == 1.0


@pytest.mark.parametrize("num_rows", [1, 2])
def test_rows_that_are_all_there_are_meet_again_as_often_as_by_chance(tmp_path: Path, num_rows: int) -> None:
    few = measure_mixing(view_of(tmp_path, [num_rows]), config_of(lanes=1, global_batch_size=4))
    assert few == (0.0, (), 1.0, None)


def test_places_are_looked_at_from_the_first_row_to_the_last_but_not_all_of_many(tmp_path, monkeypatch) -> None:
    requested = []

    def windows_of(loader, view, rows, epoch):
        requested.append((rows, epoch))
        return rows // 100

    monkeypatch.setattr(mixing_module, "_windows_of", windows_of)
    large = view_of(tmp_path, [2500, 2500])
    _position_correlation(Loader(large, config_of(), ()), large)
    assert [epoch for _, epoch in requested] == [0, 1]
    for rows, _ in requested:
        assert (len(np.unique(rows)), rows[0], rows[-1]) == (4096, 0, 4999)
        assert np.diff(rows).max() == 2, "spread evenly"


def test_an_order_without_anything_to_see_needs_no_mend(tmp_path: Path) -> None:
    """Rows of one kind and any length, which buckets keep apart on purpose, in many small row groups."""
    rows = [[1] * (1 + row % 7) for row in range(160)]
    table = pa.table({"input_ids": pa.array(rows, pa.list_(pa.int32())), "label": pa.array([0] * 160, pa.int8())})
    (tmp_path / "source").mkdir()
    pq.write_table(table, tmp_path / "source" / "a.parquet", row_group_size=5)
    index_dataset(str(tmp_path / "source"), tmp_path / "dataset")
    view = whole_view(Dataset.open(tmp_path / "dataset"))
    mixing = measure_mixing(view, config_of(layout=BucketedLayout()))
    assert abs(mixing.position_correlation) < 0.25
    assert (mixing.traits, mixing.fix) == ((), None)


def test_steps_that_all_hold_the_same_do_not_vary_and_neighbours_do_not_agree() -> None:
    values = np.array([[1.0], [-1.0], [-1.0], [1.0]])
    assert _trait("x", values, [np.array([0, 0, 1, 1])]) == TraitMixing("x", variation=0.0, neighbours=0.0)


class Numbers:
    """Rows of one token in row groups of 4,096, made up when they are read."""

    fingerprint = "f" * 64

    def __init__(self, num_groups: int) -> None:
        self.identities = np.arange(num_groups, dtype=np.uint64)
        self.num_rows = np.full(num_groups, 4096, np.int64)

    def row_ids(self, group: int) -> np.ndarray:
        return np.arange(4096 * group, 4096 * (group + 1), dtype=np.uint64)

    def read(self, group: int, columns) -> pa.Table:
        ones = pa.ListArray.from_arrays(np.arange(4097, dtype=np.int32), np.ones(4096, np.int32))
        return pa.table({"input_ids": ones})

    def shard_of(self, group: int) -> str:
        return "a"


@pytest.mark.parametrize(
    ("num_groups", "changes", "lanes", "windows"),
    [
        # Eight lanes at most, spread over all.
        (1, {"lanes": 64, "global_batch_size": 64, "window_rows": 32}, range(0, 64, 8), [0, 1]),
        (1, {"lanes": 16, "global_batch_size": 16, "window_rows": 128}, range(0, 16, 2), [0, 1]),
        (1, {"lanes": 8, "global_batch_size": 8, "window_rows": 256}, range(8), [0, 1]),
        (1, {"lanes": 1, "global_batch_size": 1, "window_rows": 512}, range(1), list(range(8))),
        # 32 windows at most, the first and the last among them.
        (
            1,
            {"lanes": 1, "global_batch_size": 2, "window_rows": 2},
            range(1),
            [n * 2047 // 31 for n in range(32)],
        ),
        # 131,072 rows, about: so many of eight lanes' windows of 2,048 rows.
        (64, {"lanes": 8, "global_batch_size": 64, "window_rows": 2048}, range(8), [0, 2, 4, 6, 8, 10, 12, 15]),
        # Two windows in any case.
        (64, {"lanes": 2, "global_batch_size": 2, "window_rows": 43_691}, range(2), [0, 2]),
    ],
)  # fmt: skip
def test_windows_and_lanes_are_spread_over_all_and_bounded(num_groups, changes, lanes, windows) -> None:
    loader = Loader(Numbers(num_groups), config_of(**changes), ())
    samples = list(_samples(loader))
    assert {sample.lanes for sample in samples} == {lanes}
    assert {sample.window.epoch for sample in samples} == {0}
    found = [sample.window.window for sample in samples]
    assert len(found) == len(windows) and (found[0], found[-1]) == (windows[0], windows[-1])
    assert np.abs(np.subtract(found, windows)).max() <= max(1, loader.geometry.num_windows // 1000)
    for sample in samples[:: len(samples) - 1]:
        rows = [loader.rows_of_window(0, lane, sample.window.window) for lane in lanes]
        assert sample.num_rows == [len(row) for row in rows]
        assert (sample.row_ids == np.concatenate(rows)).all()
        assert sample.present.all() and (sample.lengths == 1).all() and not sample.columns


@pytest.mark.parametrize("layout", [PaddedLayout(), BucketedLayout()], ids=lambda layout: layout.type)
def test_a_samples_rows_have_the_steps_that_serve_them_and_damaged_ones_none(fake_source, layout) -> None:
    source = fake_source([13, 20, 9, 30])
    source.damaged = {1}
    loader = Loader(source, config_of(layout=layout, on_damage="quarantine"), ())
    windows = rows_of_windows(loader)
    samples = list(_samples(loader))
    assert len(samples) == len(windows)
    for sample, steps in zip(samples, windows, strict=True):
        step_of_row = {row: step for step, rows in enumerate(steps) for row in rows}
        found = _steps(loader, sample, np.arange(len(sample.row_ids)), epoch=0)
        assert found.tolist() == [step_of_row.get(row, -1) for row in sample.row_ids.tolist()]
        assert ((found < 0) == ~sample.present).all()


@pytest.mark.parametrize(
    ("group_rows", "window_rows", "positions", "excess", "expected"),
    [
        # Lanes of 80 rows, of four to a step. Below both bounds all is well.
        ([40] * 4, 12, 0.2499, 0.9999, None),
        # A lane in the files' order: four row groups in a window, or in a lane.
        ([10] * 16, 12, 0.25, 0.0, OrderFix(64, 10)),
        ([5] * 32, 12, 0.25, 0.0, OrderFix(32, 5)),
        ([40] * 4, 12, 0.25, 0.0, OrderFix(80, 12)),
        ([40] * 4, 60, 0.25, 0.0, OrderFix(80, 20)),
        # Twice, or eight times, what a mended order may have.
        ([5] * 32, 12, 0.0, 1.0, OrderFix(32, 2)),
        ([5] * 32, 12, 0.2499, 4.0, OrderFix(80, 1)),
        ([10] * 16, 12, 0.0, 1.0, OrderFix(32, 5)),
        ([10] * 16, 8, 0.0, 1.0, OrderFix(32, 4)),
        # Of row groups that differ, the size that a row's has on average.
        ([10, 30] * 4, 12, 0.0, 1.0, OrderFix(64, 6)),
        ([159, 1], 24, 0.0, 1.0, OrderFix(80, 10)),
    ],
)  # fmt: skip
def test_a_mend_is_a_window_of_more_row_groups_or_smaller_ones(
    tmp_path: Path, group_rows, window_rows, positions, excess, expected
) -> None:
    small = view_of(tmp_path, group_rows)
    assert _order_fix(Loader(small, config_of(window_rows=window_rows), ()), small, positions, excess) == expected
