import hashlib
import json
import re
import threading
import time
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.base.errors import ConfigError, DamagedDataError, DataError
from assay.data.loader import loader as loader_module
from assay.data.loader.batch import LaneShare, StepShare
from assay.data.loader.config import BucketedLayout, LoaderConfig, PackedLayout, PaddedLayout
from assay.data.loader.loader import Loader, with_lookahead
from assay.data.loader.order import lanes_of_reader
from assay.data.loader.receipts import NO_ROWS, receipt
from assay.records.cursor import Cursor
from variants import slow

COLUMNS = ("input_ids", "spans", "label", "language")
LAYOUTS = [PaddedLayout(), BucketedLayout(), PackedLayout(type="packed", sequence_tokens=20)]
ids = {"ids": lambda layout: layout.type}

group_sizes = st.lists(st.integers(0, 25), min_size=1, max_size=12).filter(any)
layouts = st.sampled_from(LAYOUTS)
configs = st.builds(
    lambda lanes, rows, **rest: LoaderConfig(
        lanes=lanes, global_batch_size=lanes * rows, prefetch_steps=0, threads=1, **rest
    ),
    lanes=st.sampled_from([1, 2, 4, 8]),
    rows=st.integers(1, 5),
    window_rows=st.integers(1, 40),
    shuffle_radius_windows=st.integers(0, 3),
    layout=layouts,
    seed=st.integers(0, 3),
    max_micro_batch_tokens=st.sampled_from([None, 20, 60]),
)


def config_of(**changes):
    defaults = {
        "lanes": 4,
        "global_batch_size": 8,
        "window_rows": 16,
        "shuffle_radius_windows": 0,
        "threads": 1,
    }
    return LoaderConfig(**defaults | changes)


def rows_of(share):
    """The share as plain values: who stands in which micro-batch of which lane."""
    return [(lane.lane, tuple(tuple(batch.row_ids.tolist()) for batch in lane.micro_batches)) for lane in share.lanes]


def all_rows(shares):
    return [row for share in shares for _, batches in rows_of(share) for batch in batches for row in batch]


def epoch_of(loader, lanes=None, epoch=0):
    lanes = lanes or range(loader.config.lanes)
    return list(loader.shares(Cursor(epoch=epoch), lanes, loader.steps_per_epoch))


@settings(max_examples=30, deadline=None)
@given(
    sizes=group_sizes,
    config=configs,
    readers=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    data=st.data(),
)
def test_runs_cut_anywhere_on_any_number_of_ranks_read_what_one_undisturbed_run_reads(
    fake_source, sizes, config, readers, data
):
    source = fake_source(sizes)
    whole = Loader(source, config, COLUMNS)
    num_steps = 2 * whole.steps_per_epoch
    expected = [rows_of(share) for share in whole.shares(Cursor(), range(config.lanes), num_steps)]
    served, step = [], 0
    for num_readers in readers:
        stop = data.draw(st.integers(step, num_steps)) if num_readers is not readers[-1] else num_steps
        loader = Loader(source, config, COLUMNS)
        shares = [
            loader.shares(loader.cursor_at(step), lanes_of_reader(reader, num_readers, config.lanes), stop - step)
            for reader in range(num_readers)
        ]
        served += [[lane for part in parts for lane in rows_of(part)] for parts in zip(*shares, strict=True)]
        step = stop
    assert served[:num_steps] == expected
    for epoch in (0, 1):
        steps = expected[epoch * whole.steps_per_epoch : (epoch + 1) * whole.steps_per_epoch]
        rows = [row for step in steps for _, batches in step for batch in batches for row in batch]
        assert sorted(rows) == source.all_rows


@pytest.mark.parametrize("layout", LAYOUTS, **ids)
def test_a_resume_at_every_step_continues_exactly(fake_source, layout):
    loader = Loader(fake_source([13, 40, 1, 0, 29]), config_of(layout=layout), COLUMNS)
    num_steps = 2 * loader.steps_per_epoch + 3
    expected = [(share.cursor, rows_of(share)) for share in loader.shares(Cursor(), range(4), num_steps)]
    for step in range(num_steps):
        shares = loader.shares(loader.cursor_at(step), range(4), num_steps - step)
        assert [(share.cursor, rows_of(share)) for share in shares] == expected[step:]


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(sizes=group_sizes, config=configs)
def test_layouts_serve_the_same_rows_from_the_same_windows(fake_source, sizes, config):
    source = fake_source(sizes)
    receipts = []
    for layout in LAYOUTS:
        loader = Loader(source, config.model_copy(update={"layout": layout}), COLUMNS)
        steps = config.window_steps
        first_window = list(islice(epoch_of(loader), steps))
        for lane in range(config.lanes):
            rows = [row for share in first_window for row in all_rows_of_lane(share, lane)]
            assert receipt(np.array(rows, np.uint64)) == loader.expected_receipt(0, lane, 0)
        receipts.append([loader.expected_receipt(0, lane, 0) for lane in range(config.lanes)])
    assert receipts[0] == receipts[1] == receipts[2]


def all_rows_of_lane(share, lane):
    return [row for batch in share.lanes[lane].micro_batches for row in batch.row_ids.tolist()]


@settings(max_examples=40, deadline=None)
@given(sizes=group_sizes, config=configs)
def test_every_row_comes_with_its_own_tokens_label_and_metadata(fake_source, sizes, config):
    source = fake_source(sizes, keep=lambda row: row % 5 != 1)
    if not source.num_rows.sum():
        return
    for share in epoch_of(Loader(source, config, COLUMNS)):
        for batch in (batch for lane in share.lanes for batch in lane.micro_batches):
            rows = batch.row_ids.tolist()
            assert batch.tokens.lengths.tolist() == [source.length_of(row) for row in rows]
            assert batch.columns["label"].to_pylist() == [row % 2 for row in rows]
            languages = [None if row % 7 == 0 else f"l{row % 3}" for row in rows]
            assert batch.columns["language"].to_pylist() == languages
            expected = [token for row in rows for token in [row + 1] * source.length_of(row)]
            assert batch.tokens.values[batch.tokens.values > 0].tolist() == expected
            spans = batch.ragged["spans"]
            assert [line[inside].tolist() for line, inside in zip(spans.values, spans.mask(), strict=True)] == [
                list(range(row % 3)) for row in rows
            ]
            assert not spans.values[~spans.mask()].any()


def test_packed_rows_are_told_apart_by_segments_positions_and_borders(fake_source):
    loader = Loader(fake_source([60]), config_of(layout=LAYOUTS[2], global_batch_size=16), COLUMNS)
    for share in epoch_of(loader):
        for batch in (batch for lane in share.lanes for batch in lane.micro_batches):
            packing, rows = batch.packing, iter(batch.row_ids.tolist())
            assert np.diff(packing.cu_seqlens).tolist() == batch.tokens.lengths.tolist()
            assert batch.ragged["spans"].lengths.tolist() == [row % 3 for row in batch.row_ids.tolist()]
            for tokens, positions, segments in zip(
                batch.tokens.values, packing.position_ids, packing.segment_ids, strict=True
            ):
                for segment in range(1, segments.max() + 1):
                    inside = segments == segment
                    assert set(tokens[inside]) == {next(rows) + 1}
                    assert positions[inside].tolist() == list(range(inside.sum()))
                assert not tokens[segments == 0].any() and not positions[segments == 0].any()
            assert next(rows, None) is None


@pytest.mark.parametrize("threads", [3, *slow(1)])
@pytest.mark.parametrize("prefetch_steps", [0, 7, *slow(1)])
@pytest.mark.parametrize("layout", LAYOUTS, **ids)
def test_threads_and_prefetch_change_nothing(fake_source, layout, prefetch_steps, threads):
    source = fake_source([17, 31, 8, 50])
    plain = Loader(source, config_of(layout=layout, prefetch_steps=0), COLUMNS)
    other = Loader(source, config_of(layout=layout, prefetch_steps=prefetch_steps, threads=threads), COLUMNS)
    for one, two in zip(epoch_of(plain), epoch_of(other), strict=True):
        assert rows_of(one) == rows_of(two)
        for a, b in zip(one.lanes, two.lanes, strict=True):
            for batch, same in zip(a.micro_batches, b.micro_batches, strict=True):
                np.testing.assert_array_equal(batch.tokens.values, same.tokens.values)


@pytest.mark.parametrize("layout", LAYOUTS[:2], **ids)
def test_steps_have_the_rows_that_were_promised_and_only_the_last_is_short(fake_source, layout):
    loader = Loader(fake_source([50, 37]), config_of(layout=layout), COLUMNS)
    rows = [len(all_rows([share])) for share in epoch_of(loader)]
    assert rows == [loader.rows_in_step(step) for step in range(loader.steps_per_epoch)]
    assert rows == [8] * 10 + [7]


@pytest.mark.parametrize("layout", LAYOUTS, **ids)
def test_fewer_rows_than_lanes_leave_some_lanes_without_a_micro_batch(fake_source, layout):
    loader = Loader(fake_source([0, 1, 2]), config_of(layout=layout, max_micro_batch_tokens=20), COLUMNS)
    (share,) = epoch_of(loader)
    assert sorted(all_rows([share])) == [0, 1, 2]
    assert [lane.num_rows for lane in share.lanes] == [0, 1, 1, 1]


def test_steps_are_counted_through_the_epochs(fake_source):
    loader = Loader(fake_source([50, 37]), config_of(), COLUMNS)
    assert loader.steps_per_epoch == 11
    assert [loader.cursor_at(step) for step in (0, 10, 11, 36)] == [
        Cursor(epoch=0, step_in_epoch=0),
        Cursor(epoch=0, step_in_epoch=10),
        Cursor(epoch=1, step_in_epoch=0),
        Cursor(epoch=3, step_in_epoch=3),
    ]
    assert loader.next_cursor(Cursor(epoch=2, step_in_epoch=9)) == Cursor(epoch=2, step_in_epoch=10)
    assert loader.next_cursor(Cursor(epoch=2, step_in_epoch=10)) == Cursor(epoch=3, step_in_epoch=0)


def test_a_pass_goes_on_from_epoch_to_epoch_wherever_it_began(fake_source):
    """Two steps in a window, five in an epoch."""
    loader = Loader(fake_source([7, 2]), config_of(lanes=1, global_batch_size=2, window_rows=4), COLUMNS)
    expected = [
        (Cursor(epoch=epoch, step_in_epoch=step), rows_of(share))
        for epoch in (0, 1)
        for step, share in enumerate(epoch_of(loader, epoch=epoch))
    ]
    assert len(expected) == 10
    for first in (0, 3, 4):
        shares = loader.shares(loader.cursor_at(first), range(1), 10 - first)
        assert [(share.cursor, rows_of(share)) for share in shares] == expected[first:]


def test_both_sequences_of_a_pair_count_against_the_budget(fake_source):
    """Of nine and of four tokens at most: two rows of the longest fit into 36, one into 35."""
    columns = ("input_ids", "rejected_ids")
    for budget in (35, 36):
        loader = Loader(fake_source([300]), config_of(max_micro_batch_tokens=budget, lanes=1), columns)
        batches = [batch for share in epoch_of(loader) for batch in share.lanes[0].micro_batches]
        assert sum(len(batch.row_ids) for batch in batches) == 300
        longest = [batch.tokens.lengths.max() for batch in batches]
        assert all(2 * most * len(batch.row_ids) <= budget for most, batch in zip(longest, batches, strict=True))
        of_nine = [len(batch.row_ids) for most, batch in zip(longest, batches, strict=True) if most == 9]
        assert max(of_nine) == budget - 34
        for batch in batches:
            assert batch.ragged["rejected_ids"].lengths.tolist() == [int(row) % 5 for row in batch.row_ids]


def test_pairs_are_not_packed(fake_source):
    source = fake_source([30])
    with pytest.raises(ConfigError, match="pairs cannot be packed"):
        Loader(source, config_of(layout=LAYOUTS[2]), ("input_ids", "rejected_ids"))
    assert Loader(source, config_of(layout=LAYOUTS[2]), ("input_ids",)).rows_in_step(0) is None


@pytest.mark.parametrize("layout", LAYOUTS[:2], **ids)
def test_rows_that_are_lost_amid_a_window_stop_those_layouts_that_hang_on_lengths(fake_source, layout):
    source = fake_source([16] * 4)
    source.damaged = {1}
    loader = Loader(source, config_of(layout=layout, on_damage="quarantine"), COLUMNS)
    shares = loader.shares(loader.cursor_at(1), range(4), 1, skipped=())
    if layout.type == "padded":
        assert not any(row // 16 == 1 for row in all_rows(shares))
    else:
        with pytest.raises(DamagedDataError, match="row group 1 of the dataset was damaged after some steps"):
            list(shares)


def test_epochs_have_orders_of_their_own(fake_source):
    loader = Loader(fake_source([50, 37]), config_of(), COLUMNS)
    assert all_rows(epoch_of(loader, epoch=0)) != all_rows(epoch_of(loader, epoch=1))


def test_a_view_without_rows_is_refused(fake_source):
    with pytest.raises(DataError, match="no row is selected"):
        Loader(fake_source([0, 0]), config_of(), COLUMNS)


def test_a_row_longer_than_a_packed_sequence_is_named(fake_source):
    layout = PackedLayout(type="packed", sequence_tokens=5)
    source = fake_source([200])
    with pytest.raises(DataError, match=r"has 9 tokens and loader.layout.sequence_tokens is 5") as caught:
        epoch_of(Loader(source, config_of(layout=layout), COLUMNS))
    assert source.length_of(int(str(caught.value).split()[1])) == 9


def test_a_row_as_long_as_a_packed_sequence_fills_it(fake_source):
    source = fake_source([200])
    layout = PackedLayout(type="packed", sequence_tokens=9)
    assert sorted(all_rows(epoch_of(Loader(source, config_of(layout=layout), COLUMNS)))) == source.all_rows


@pytest.mark.parametrize("prefetch_steps", [0, 4])
def test_damage_reaches_the_reader_with_the_window_that_needs_it_and_not_before(fake_source, prefetch_steps):
    source = fake_source([32] * 8)
    loader = Loader(source, config_of(prefetch_steps=prefetch_steps, window_rows=16), COLUMNS)
    whole = [rows_of(share) for share in epoch_of(loader)]
    victim = loader.order(0).spans(40, 41)[0].group  # of lane 0, in its third window
    source.damaged = {victim}
    served = []
    shares = loader.shares(Cursor(), range(1), loader.steps_per_epoch)
    with pytest.raises(DamagedDataError, match=f"shard-{victim}"):
        served.extend(rows_of(share) for share in shares)
    assert served == [step[:1] for step in whole[: 2 * loader.config.window_steps]]


@pytest.mark.parametrize("layout", LAYOUTS, **ids)
def test_quarantined_rows_are_absent_and_reported_and_all_others_stay_in_their_windows(fake_source, layout):
    source = fake_source([16] * 8)
    config = config_of(layout=layout, on_damage="quarantine", window_rows=8)
    whole = epoch_of(Loader(source, config, COLUMNS))
    source.damaged = {3}
    hurt = epoch_of(Loader(source, config, COLUMNS))
    assert sorted(all_rows(hurt)) == [row for row in source.all_rows if row // 16 != 3]
    reports = {item for share in hurt for lane in share.lanes for item in lane.quarantined}
    assert [(item.row_group, item.shard, item.num_rows) for item in reports] == [(3, "shard-3.parquet", 16)]
    for start in range(0, len(whole), config.window_steps):
        window = slice(start, start + config.window_steps)
        assert set(all_rows(hurt[window])) == {row for row in all_rows(whole[window]) if row // 16 != 3}
    if layout.type == "padded":
        for one, two in zip(whole, hurt, strict=True):
            assert all_rows([two]) == [row for row in all_rows([one]) if row // 16 != 3]


@pytest.mark.parametrize("layout", [LAYOUTS[1], *slow(LAYOUTS[0], *LAYOUTS[2:])], **ids)
@pytest.mark.parametrize(("before", "now"), [((), (3,)), ((3,), ()), ((3,), (3,)), ((3,), (3, 4))], ids=str)
@pytest.mark.parametrize("shuffle_radius", [0, 1])
def test_damage_that_comes_or_goes_amid_a_window_deals_no_row_otherwise(
    fake_source, layout, before, now, shuffle_radius
):
    source = fake_source([5] * 24)
    config = config_of(layout=layout, on_damage="quarantine", window_rows=12, shuffle_radius_windows=shuffle_radius)
    source.damaged = set(before)
    loader = Loader(source, config, COLUMNS)
    completed = epoch_of(loader)
    spared = [row for row in source.all_rows if row // 5 not in {*before, *now}]
    refusals, wrong = 0, 0
    for cut in (step for step in range(len(completed)) if step % config.window_steps):
        skipped = {item.row_group for lane in completed[cut - 1].lanes for item in lane.quarantined}
        left = len(completed) - cut
        source.damaged = set(now)
        wrong += trained_twice_or_never(completed[:cut], loader.shares(loader.cursor_at(cut), range(4), left), spared)
        shares = loader.shares(loader.cursor_at(cut), range(4), left, skipped)
        try:
            assert not trained_twice_or_never(completed[:cut], shares, spared)
        except DamagedDataError as error:
            assert re.match(r"shard-[34]\.parquet: row group [34] .* Restore the file", str(error))
            refusals += 1
    hangs_on_lengths = layout.type != "padded"
    assert bool(refusals) == (hangs_on_lengths and not set(now) <= set(before))
    assert bool(wrong) == (hangs_on_lengths and now != before), "who does not say what was skipped"


def trained_twice_or_never(completed, shares, spared):
    trained = [*all_rows(completed), *all_rows(shares)]
    return len(trained) > len(set(trained)) or not set(spared) <= set(trained)


def test_a_dataset_that_is_damaged_all_over_still_has_its_steps(fake_source):
    source = fake_source([16] * 4)
    source.damaged = {0, 1, 2, 3}
    for layout in LAYOUTS:
        loader = Loader(source, config_of(layout=layout, on_damage="quarantine"), COLUMNS)
        assert [all_rows([share]) for share in epoch_of(loader)] == [[]] * loader.steps_per_epoch


@pytest.mark.parametrize("layout", LAYOUTS, **ids)
def test_rows_beside_damaged_ones_keep_their_own_tokens_and_columns(fake_source, layout):
    source = fake_source([5] * 24)
    source.damaged = {2, 3, 11}
    config = config_of(layout=layout, on_damage="quarantine", window_rows=12)
    seen = 0
    for share in epoch_of(Loader(source, config, COLUMNS)):
        for batch in (batch for lane in share.lanes for batch in lane.micro_batches):
            rows = batch.row_ids.tolist()
            assert batch.columns["label"].to_pylist() == [row % 2 for row in rows]
            assert batch.tokens.lengths.tolist() == [source.length_of(row) for row in rows]
            expected = [token for row in rows for token in [row + 1] * source.length_of(row)]
            assert batch.tokens.values[batch.tokens.values > 0].tolist() == expected
            seen += len(rows)
    assert seen == 5 * 21


def test_a_damaged_group_that_several_windows_need_is_read_once(fake_source):
    source = fake_source([64])
    source.damaged = {0}
    loader = Loader(source, config_of(lanes=1, window_rows=8, on_damage="quarantine"), COLUMNS)
    reports = {share.lanes[0].quarantined for share in epoch_of(loader)}
    (((report),),) = reports
    assert report.reason.startswith("shard-0.parquet: row group 0 has digest")
    assert source.reads[0] == 1


def in_several_chunks(source, wrong=None):
    """The same rows as a reader may hand them over; `wrong` alters the tables."""

    class Chunked(type(source)):
        def __init__(self):
            self.__dict__.update(source.__dict__)

        def read(self, group, columns):
            table = super().read(group, columns)
            cut = table.num_rows // 3
            parts = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
            return wrong(parts) if wrong else parts

    return Chunked()


def test_row_groups_may_come_in_several_chunks(fake_source):
    source = fake_source([17, 31, 8])
    whole, chunked = (
        epoch_of(Loader(completed, config_of(), COLUMNS)) for completed in (source, in_several_chunks(source))
    )
    for one, two in zip(whole, chunked, strict=True):
        for a, b in zip(one.lanes, two.lanes, strict=True):
            for batch, same in zip(a.micro_batches, b.micro_batches, strict=True):
                np.testing.assert_array_equal(batch.tokens.values, same.tokens.values)
                assert batch.columns == same.columns


def with_column(name, array):
    return lambda table: table.set_column(table.column_names.index(name), name, array(table.num_rows))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            with_column("input_ids", lambda rows: pa.array([None] * rows, pa.list_(pa.int32()))),
            r"row group 0: column 'input_ids' has \d+ nulls. Drop these rows",
        ),
        (
            with_column("spans", lambda rows: pa.array([[0.5]] * rows, pa.list_(pa.float64()))),
            r"row group 0: column 'spans' holds lists of double; expected lists of integers",
        ),
    ],
)
def test_a_list_column_that_is_none_of_whole_numbers_is_named(fake_source, wrong, message):
    source = in_several_chunks(fake_source([30]), wrong)
    with pytest.raises(DataError, match=message):
        epoch_of(Loader(source, config_of(), COLUMNS))


GOLDEN = Path(__file__).parents[3] / "golden" / "order.json"


def golden_name(layout) -> str:
    return layout.type + (f" {layout.jitter}" if getattr(layout, "jitter", 0) else "")


@pytest.mark.parametrize("layout", [*LAYOUTS, BucketedLayout(jitter=0.25)], ids=golden_name)
@pytest.mark.parametrize("budget", [None, 20])
@pytest.mark.parametrize("shuffle_radius", [0, 2])
def test_each_steps_rows_are_those_that_earlier_versions_served(fake_source, layout, budget, shuffle_radius):
    """A change here breaks the resume and the audit of every run that exists: it needs a new major version."""
    source = fake_source([150, 40, 7, 300, 1, 0, 222])
    source.damaged = {1}
    config = config_of(
        seed=5, layout=layout, max_micro_batch_tokens=budget, global_batch_size=24, on_damage="quarantine",
        window_rows=24 if shuffle_radius else 96, shuffle_radius_windows=shuffle_radius,
    )  # fmt: skip
    loader = Loader(source, config, COLUMNS)
    served = [[rows_of(share) for share in epoch_of(loader, epoch=epoch)] for epoch in (0, 3)]
    digest = hashlib.sha256(json.dumps(served).encode()).hexdigest()
    name = f"{golden_name(layout)}, {budget}" + (f", spread {shuffle_radius}" if shuffle_radius else "")
    assert digest == json.loads(GOLDEN.read_text())["steps"][name]


@pytest.mark.parametrize("prefetch_steps", [0, 2])
def test_no_more_is_made_ahead_than_was_asked_for(fake_source, prefetch_steps):
    """A step is a window here. Beyond the steps made ahead, one is in the making and one being read."""
    source = fake_source([4] * 40)
    config = config_of(prefetch_steps=prefetch_steps, global_batch_size=16, window_rows=4)
    loader = Loader(source, config, COLUMNS)
    with closing(loader.shares(Cursor(), range(1), loader.steps_per_epoch)) as shares:
        next(shares)
        assert ("loader-steps" in loader_threads()) == bool(prefetch_steps)
        assert all(thread.daemon for thread in threading.enumerate() if thread.name == "loader-steps")
        time.sleep(0.1)
        assert source.reads.total() <= prefetch_steps + 4
    assert "loader-steps" not in loader_threads()
    assert source.reads.total() <= prefetch_steps + 6, "nor when the reader has gone"


def test_closing_a_half_read_iterator_stops_its_threads(fake_source):
    loader = Loader(fake_source([50] * 10), config_of(prefetch_steps=3, threads=2), COLUMNS)
    with closing(loader.shares(Cursor(), range(4), 10 * loader.steps_per_epoch)) as shares:
        next(shares)
        assert {"loader-steps", "loader_0", "loader_1"} <= set(loader_threads())
    deadline = time.monotonic() + 5
    while loader_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not loader_threads()


def test_who_leaves_waits_for_no_read_and_none_that_has_not_begun_begins(fake_source):
    """Four lanes with a row group in each window; the one thread is held up by the second window's first."""
    started, ended, go_on = threading.Event(), threading.Event(), threading.Event()

    class Held(type(fake_source([1]))):
        def read(self, group, columns):
            is_held = self.reads.total() == 4
            table = super().read(group, columns)
            if is_held:
                started.set(), go_on.wait(5), ended.set()
            return table

    source = Held([16] * 8)
    loader = Loader(source, config_of(), COLUMNS)
    with closing(loader.shares(Cursor(), range(4), loader.steps_per_epoch)) as shares:
        next(shares)
        assert started.wait(30)
    assert not ended.is_set()
    go_on.set()
    deadline = time.monotonic() + 30
    while loader_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended.is_set() and source.reads.total() == 5
    assert loader_module.CLOSE_POLL_S <= 0.1, "nor does who leaves a thread that is ahead wait for long"


def test_a_reader_slower_than_the_thread_ahead_of_it_gets_every_step(fake_source, monkeypatch):
    monkeypatch.setattr(loader_module, "CLOSE_POLL_S", 0.0005)
    loader = Loader(fake_source([50] * 10), config_of(prefetch_steps=1), COLUMNS)
    expected = [rows_of(share) for share in islice(epoch_of(loader), 5)]
    found = []
    with closing(loader.shares(Cursor(), range(4), loader.steps_per_epoch)) as shares:
        for share in islice(shares, 5):
            time.sleep(0.005)
            found.append(rows_of(share))
    assert found == expected


def loader_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("loader")]


def test_a_row_group_is_read_once_an_epoch_and_at_the_borders_of_lanes_once_more(fake_source):
    source = fake_source([10] * 100)
    loader = Loader(source, config_of(window_rows=12), COLUMNS)
    epoch_of(loader)
    assert set(source.reads) == set(range(100))
    assert source.reads.total() <= 100 + loader.config.lanes


def test_nothing_beyond_the_steps_that_were_asked_for_is_read(fake_source):
    source = fake_source([8] * 100)
    loader = Loader(source, config_of(window_rows=8), COLUMNS)
    list(loader.shares(Cursor(), range(1), loader.config.window_steps))
    assert source.reads.total() <= 2


def test_a_resume_reads_as_much_at_the_end_of_ten_million_rows_as_at_the_start(fake_source):
    loader, source = ten_million_rows(fake_source)
    reads = []
    for share_done in (0.01, 0.99):
        source.reads.clear()
        cursor = loader.cursor_at(int(share_done * loader.steps_per_epoch))
        (share,) = loader.shares(cursor, range(8), 1)
        assert sum(lane.num_rows for lane in share.lanes) == 64
        reads.append(source.reads.total())
    assert max(reads) <= 8 * (7 * 1024 // 1000 + 2)
    assert abs(reads[0] - reads[1]) <= 8


def ten_million_rows(fake_source):
    """10,000 row groups of 1,000 rows; rows are made up when read."""
    source = fake_source([1])

    class Large(type(source)):
        def __init__(self):
            super().__init__([1])
            self.identities = np.arange(10_000, dtype=np.uint64)
            self.num_rows = np.full(10_000, 1000, np.int64)
            self._rows = _Ranges()
            self.max_length = 2

    large = Large()
    config = LoaderConfig(lanes=8, global_batch_size=64, window_rows=1024, prefetch_steps=0)
    return Loader(large, config, COLUMNS), large


class _Ranges:
    def __getitem__(self, group):
        return np.arange(group * 1000, (group + 1) * 1000, dtype=np.uint64)


def test_an_epochs_receipts_add_up_to_that_of_all_rows(fake_source):
    source = fake_source([13, 40, 1, 0, 29])
    loader = Loader(source, config_of(), COLUMNS)
    total = NO_ROWS
    for lane in range(4):
        for window in range(loader.geometry.num_windows):
            total = total.plus(loader.expected_receipt(0, lane, window))
    assert total == receipt(np.array(source.all_rows, np.uint64))


@pytest.mark.parametrize("num_steps", [0, 1, 2, 5])
def test_a_share_knows_so_many_that_follow_and_no_more_are_read(num_steps):
    shares = [StepShare(Cursor(epoch=0, step_in_epoch=step), (LaneShare(2, ()),)) for step in range(4)]
    read = []

    def reading():
        for share in shares:
            read.append(share)
            yield share

    for index, share in enumerate(with_lookahead(reading(), num_steps)):
        assert len(read) == min(index + num_steps + 1, len(shares))
        assert (share.cursor, share.lanes) == (shares[index].cursor, shares[index].lanes)
        assert share.upcoming == tuple(item.lanes for item in shares[index + 1 : index + 1 + num_steps])
    assert index == len(shares) - 1
