"""How well an order mixes: as told from a few windows, and as whole epochs have it."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assay.data.dataset.dataset import Dataset
from assay.data.dataset.index import index_dataset
from assay.data.dataset.split import HashSplit, split_view, whole_view
from assay.data.loader.config import BucketedLayout, LoaderConfig, PaddedLayout
from assay.data.loader.loader import Loader
from assay.data.loader.mixing import (
    BAD_EXCESS,
    GOOD_CORRELATION,
    MIN_GROUPS,
    TraitMixing,
    _as_numbers,
    _is_informative,
    _num_pairs,
    _order_fix,
    _pair_recurrence,
    _samples,
    _steps,
    _trait,
    _windows_of,
    measure_mixing,
)
from assay.records.cursor import Cursor
from assay.records.dataset import ColumnProfile
from variants import soaked

NUM_ROWS, NUM_DOMAINS = 20_000, 10


@pytest.fixture
def sorted_dataset(tmp_path: Path):
    """Rows sorted into domains, in row groups of some size."""

    def make(group_rows: int, *, shuffled: bool = False) -> Dataset:
        rng = np.random.default_rng(0)
        domains = np.arange(NUM_ROWS) * NUM_DOMAINS // NUM_ROWS
        if shuffled:
            rng.shuffle(domains)
        borders = np.concatenate([[0], np.cumsum(rng.integers(1, 40, NUM_ROWS))]).astype(np.int32)
        columns = {
            "input_ids": pa.ListArray.from_arrays(pa.array(borders), pa.array(np.ones(borders[-1], np.int32))),
            "label": pa.array((rng.random(NUM_ROWS) < 0.3).astype(np.int8)),
            "domain": pa.array([f"domain {domain}" for domain in domains]),
            "key": pa.array([f"key {row}" for row in range(NUM_ROWS)]),
            "when": pa.array(np.arange(NUM_ROWS), pa.timestamp("s")),
        }
        (tmp_path / "source").mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), tmp_path / "source" / "a.parquet", row_group_size=group_rows)
        index_dataset(str(tmp_path / "source"), tmp_path / "dataset")
        return Dataset.open(tmp_path / "dataset")

    return make


def config_of(**changes) -> LoaderConfig:
    defaults = {"lanes": 4, "global_batch_size": 64, "window_rows": 512, "layout": PaddedLayout()}
    return LoaderConfig(**{"threads": 1, "shuffle_radius_windows": 0} | defaults | changes)


def rows_of_epoch(loader: Loader, epoch: int) -> list[np.ndarray]:
    shares = loader.shares(Cursor(epoch=epoch), range(loader.config.lanes), loader.steps_per_epoch)
    return [
        np.concatenate([batch.row_ids for lane in share.lanes for batch in lane.micro_batches]).astype(np.int64)
        for share in shares
    ]


def step_of_row(steps: list[np.ndarray]) -> np.ndarray:
    found = np.empty(NUM_ROWS, np.int64)
    for step, rows in enumerate(steps):
        found[rows] = step
    return found


def trait(mixing, name):
    return next(trait for trait in mixing.traits if trait.name == name)


@pytest.mark.parametrize("group_rows", [500, 2000, 5000])
def test_some_windows_tell_what_whole_epochs_hold(sorted_dataset, group_rows: int) -> None:
    view, config = whole_view(sorted_dataset(group_rows)), config_of()
    loader = Loader(view, config, ())
    epochs = [rows_of_epoch(loader, epoch) for epoch in (0, 1)]
    domains = np.arange(NUM_ROWS) * NUM_DOMAINS // NUM_ROWS
    counts = np.array([np.bincount(domains[rows], minlength=NUM_DOMAINS) for rows in epochs[0][:-1]])
    share = 1 / NUM_DOMAINS
    variation = np.sqrt(((counts - 64 * share) ** 2).mean() / (64 * share * (1 - share)))
    correlation = np.corrcoef([step_of_row(steps) for steps in epochs])[0, 1]
    mixing = measure_mixing(view, config)
    assert mixing.fix is not None
    assert {trait.name for trait in mixing.traits} == {"domain", "label", "when", "tokens a row"}
    assert list(mixing.traits) == sorted(mixing.traits, key=lambda trait: -trait.variation), "the worst first"
    assert trait(mixing, "domain").variation == pytest.approx(variation, rel=0.15)
    assert mixing.position_correlation == pytest.approx(correlation, abs=0.05)


def test_rows_that_were_shuffled_are_mixed_by_any_window(sorted_dataset) -> None:
    dataset = sorted_dataset(500, shuffled=True)
    for layout in (PaddedLayout(), BucketedLayout()):
        mixing = measure_mixing(whole_view(dataset), config_of(layout=layout))
        domain = trait(mixing, "domain")
        assert domain.variation == pytest.approx(1, abs=0.15)
        assert domain.neighbours == pytest.approx(0, abs=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("group_rows", [500, *soaked(2000, 5000)])
def test_what_is_said_to_mend_it_mends_it(sorted_dataset, group_rows: int) -> None:
    view = whole_view(sorted_dataset(group_rows))
    fix = measure_mixing(view, config_of()).fix
    assert fix is not None
    assert measure_mixing(view, config_of(window_rows=fix.window_rows)).fix is None
    view = whole_view(sorted_dataset(fix.rows_per_group))
    assert measure_mixing(view, config_of()).fix is None


def test_rows_of_a_row_group_that_is_a_lane_come_in_the_files_order_every_epoch(sorted_dataset) -> None:
    mixing = measure_mixing(whole_view(sorted_dataset(5000)), config_of(window_rows=128))
    assert mixing.position_correlation > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "least", "most"),
    [
        pytest.param(PaddedLayout(), 1, 2, marks=pytest.mark.slow),
        (BucketedLayout(), 6, 20),
        pytest.param(BucketedLayout(jitter=0.4), 2, 5, marks=pytest.mark.slow),
    ],
)
def test_bucketing_brings_the_same_pairs_together_again(sorted_dataset, layout, least: float, most: float) -> None:
    view, config = whole_view(sorted_dataset(100)), config_of(layout=layout)
    loader = Loader(view, config, ())
    steps = [step_of_row(rows_of_epoch(loader, epoch)) for epoch in (0, 1)]
    counts = [np.unique(step, return_counts=True)[1] for step in (*steps, steps[0] * 10_000 + steps[1])]
    before, after, again = ((count * (count - 1) / 2).sum() for count in counts)
    over_chance = again / (before * after / (NUM_ROWS * (NUM_ROWS - 1) / 2))
    assert least < over_chance < most
    assert measure_mixing(view, config).pair_recurrence == pytest.approx(over_chance, rel=0.2)


def test_what_bucketing_makes_of_kinds_of_different_length_is_not_laid_to_the_window(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 40, NUM_ROWS)
    tokens = pa.ListArray.from_arrays(
        pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)),
        pa.array(np.ones(lengths.sum(), np.int32)),
    )
    kinds = pa.array([f"kind {length // 10}" for length in lengths])
    (tmp_path / "source").mkdir()
    table = pa.table({"input_ids": tokens, "label": pa.array(np.zeros(NUM_ROWS, np.int8)), "kind": kinds})
    pq.write_table(table, tmp_path / "source" / "a.parquet", row_group_size=500)
    index_dataset(str(tmp_path / "source"), tmp_path / "dataset")
    mixing = measure_mixing(whole_view(Dataset.open(tmp_path / "dataset")), config_of(layout=BucketedLayout()))
    assert trait(mixing, "kind").variation > 4
    assert mixing.fix is None


def test_a_part_of_the_rows_is_measured_by_itself_and_few_rows_are_not_judged(sorted_dataset) -> None:
    dataset = sorted_dataset(500)
    part = split_view(dataset, HashSplit(column="when", validation_fraction=0.5), "validation")
    assert trait(measure_mixing(part, config_of()), "domain").variation > 1.5
    few = measure_mixing(part, config_of(global_batch_size=1024, lanes=2))
    assert (few.traits, few.fix) == ((), None)


def test_variation_and_neighbours_are_what_plain_loops_make_of_the_steps() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(60, 2)) + np.arange(60)[:, None] / 20
    # Rows that no step serves, a step without rows, and one with a single row.
    steps = [np.array([-1, 0, 0, 0, 2, 2, 3, -1, 4, 4, 4, 4]), np.sort(rng.integers(0, 4, 24))]
    present = values[: sum(int((step >= 0).sum()) for step in steps)]
    mean = present.mean(axis=0)
    squares, products, row = [], [], 0
    for window in steps:
        sums: dict[int, list[float]] = {}
        for step in window[window >= 0]:
            sums.setdefault(int(step), []).append(present[row] - mean)
            row += 1
        scaled = [np.sum(sums[step], axis=0) / np.sqrt(len(sums[step])) for step in sorted(sums)]
        squares += [float(row @ row) for row in scaled]
        products += [float(one @ next_one) for one, next_one in pairwise(scaled)]
    uniform = float(((present - mean) ** 2).mean(axis=0).sum())
    found = _trait("x", present, steps)
    assert found.variation == pytest.approx(np.sqrt(np.mean(squares) / uniform))
    assert found.neighbours == pytest.approx(np.mean(products) / np.mean(squares))
    assert _trait("x", present[:9], [np.zeros(9, np.int64)]).neighbours == 0.0


def test_the_window_of_a_row_is_the_one_that_reads_it(sorted_dataset) -> None:
    view, config = whole_view(sorted_dataset(700)), config_of()
    loader = Loader(view, config, ())
    for epoch in (0, 1):
        window_of = np.full(NUM_ROWS, -1)
        for lane in range(config.lanes):
            for window in range(loader.geometry.num_windows):
                window_of[loader.rows_of_window(epoch, lane, window).astype(np.int64)] = window
        assert (_windows_of(loader, view, np.arange(NUM_ROWS), epoch) == window_of).all()


def test_pairs_of_a_step_share_a_window_again_as_often_as_the_next_epoch_has_them(sorted_dataset) -> None:
    """Row groups as large as windows: who stood in one once stands in one again."""
    view, config = whole_view(sorted_dataset(1000)), config_of(window_rows=1024)
    loader = Loader(view, config, ())
    windows = _windows_of(loader, view, np.arange(NUM_ROWS), 1)
    expected = []
    for rows in rows_of_epoch(loader, 0):
        counts = np.bincount(windows[rows]).astype(float)
        expected.append((counts * (counts - 1)).sum() / (len(rows) * (len(rows) - 1)))
    mixing = measure_mixing(view, config)
    assert mixing.pair_recurrence == pytest.approx(np.mean(expected) * loader.geometry.num_windows, rel=0.2)
    assert mixing.pair_recurrence > 1.5


def test_one_lane_and_one_window_are_measured_too(sorted_dataset) -> None:
    view = whole_view(sorted_dataset(500))
    mixing = measure_mixing(view, config_of(lanes=1, window_rows=NUM_ROWS))
    assert trait(mixing, "domain").variation == pytest.approx(1, abs=0.2)


def test_a_text_that_is_there_or_not_tells_rows_apart(tmp_path: Path) -> None:
    tokens = pa.array([[1, 2]] * NUM_ROWS, pa.list_(pa.int32()))
    where = pa.array(["here" if row < NUM_ROWS // 2 else None for row in range(NUM_ROWS)])
    table = pa.table({"input_ids": tokens, "label": pa.array(np.zeros(NUM_ROWS, np.int8)), "where": where})
    (tmp_path / "source").mkdir()
    pq.write_table(table, tmp_path / "source" / "a.parquet", row_group_size=1000)
    index_dataset(str(tmp_path / "source"), tmp_path / "dataset")
    mixing = measure_mixing(whole_view(Dataset.open(tmp_path / "dataset")), config_of())
    assert trait(mixing, "where").variation > 1.5


@pytest.mark.parametrize(
    ("profile", "is_informative"),
    [
        ({"top_values": (("a", 9),), "missing_rate": 0.0}, False),
        ({"top_values": (("a", 9),), "missing_rate": 0.1}, True),
        ({"top_values": (("a", 9), ("b", 1)), "missing_rate": 0.0}, True),
        ({"top_values": tuple((str(n), 1) for n in range(20)), "missing_rate": 0.0}, False),
        ({"minimum": "1", "maximum": "1", "missing_rate": 0.0}, False),
        ({"minimum": "1", "maximum": "2", "missing_rate": 0.0}, True),
    ],
)
def test_a_column_that_is_one_value_or_as_many_as_rows_tells_nothing(profile, is_informative: bool) -> None:
    assert _is_informative(ColumnProfile(name="x", type="string", **profile)) is is_informative


def test_a_text_that_is_missing_is_a_kind_of_its_own() -> None:
    kinds = _as_numbers(pa.chunked_array([["a", None, "b"], ["c", "a", None]]), is_text=True)
    assert sorted(map(tuple, kinds.T.astype(int).tolist())) == sorted(
        [(1, 0, 0, 0, 1, 0), (0, 1, 0, 0, 0, 1), (0, 0, 1, 0, 0, 0), (0, 0, 0, 1, 0, 0)]
    )


def test_pairs_that_meet_again_are_what_plain_loops_count(sorted_dataset) -> None:
    loader = Loader(whole_view(sorted_dataset(500)), config_of(lanes=2, window_rows=128), ("domain",))
    samples = list(_samples(loader))[:3]
    before = [_steps(loader, sample, np.arange(len(sample.row_ids)), epoch=0) for sample in samples]
    for steps in before:
        steps[::5] = -1  # rows that no step served
    rng = np.random.default_rng(0)
    again, by_chance = 0, 0.0
    for sample, steps in zip(samples, before, strict=True):
        after = _steps(loader, sample, rng.permutation(len(steps)), epoch=1)
        pairs = [(a, b) for a, b in zip(steps.tolist(), after.tolist(), strict=True) if a >= 0]
        pairs = [(x, y) for i, x in enumerate(pairs) for y in pairs[:i]]
        again += sum(x == y for x, y in pairs)
        shares = [sum(x[epoch] == y[epoch] for x, y in pairs) for epoch in (0, 1)]
        by_chance += shares[0] * shares[1] / len(pairs)
    assert again > 0
    assert _pair_recurrence(loader, samples, before) == pytest.approx(again / by_chance, rel=1e-12)
    assert _num_pairs(np.array([3, 3, 3, 8, 8, 1])) == 4


@pytest.mark.slow
def test_the_mend_is_as_many_rows_as_the_larger_of_window_and_row_group_times_the_factor(
    sorted_dataset,
) -> None:
    """Twice the variance that is allowed: twice the rows in a window, or half of them in a row group."""
    lane = NUM_ROWS // 4
    for group_rows, window_rows, expected in [
        (100, 512, (1024, 50)),
        (2000, 512, (4096, 256)),
        (3000, 512, (lane, 256)),
        (5000, 128, (lane, 64)),
    ]:
        view = whole_view(sorted_dataset(group_rows))
        loader = Loader(view, config_of(window_rows=window_rows), ())
        assert _order_fix(loader, view, 0.0, BAD_EXCESS) == expected


def test_what_mends_it_stays_within_the_lane_and_above_nothing(sorted_dataset) -> None:
    view = whole_view(sorted_dataset(500))
    loader = Loader(view, config_of(), ())
    worst = _order_fix(loader, view, 0.0, 1e9)
    assert worst is not None and worst == (NUM_ROWS // 4, 1)
    assert _order_fix(loader, view, 0.0, BAD_EXCESS) is not None
    assert _order_fix(loader, view, 0.0, np.nextafter(BAD_EXCESS, 0)) is None
    ordered = _order_fix(loader, view, GOOD_CORRELATION, 0.0)
    assert ordered is not None
    assert ordered.window_rows == min(NUM_ROWS // 4, 1 << int(np.ceil(np.log2(MIN_GROUPS * 500))))


def test_the_variance_that_neighbours_share_is_their_correlation_times_the_variance() -> None:
    assert TraitMixing("x", variation=3.0, neighbours=0.5).excess == 4.5
