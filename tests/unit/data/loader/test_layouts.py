import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data.loader.config import BucketedLayout, PackedLayout, PaddedLayout
from assay.data.loader.layouts import WindowKeys, arrange, pack

KEYS = WindowKeys(seed=0, epoch=0, window=0)
LAYOUTS = [PaddedLayout(), BucketedLayout(), PackedLayout(type="packed", sequence_tokens=50)]
row_lengths = st.lists(st.integers(1, 50), min_size=0, max_size=80)


def arranged(lengths, layout, *, step_rows, damaged=(), max_tokens=None, keys=KEYS):
    present = np.ones(len(lengths), bool)
    present[list(damaged)] = False
    present_lengths = np.where(present, np.array(lengths, np.int32), 0).astype(np.int32)
    row_ids = np.arange(len(lengths), dtype=np.uint64) + np.uint64(1000)
    return arrange(row_ids, present_lengths, present, layout, keys, step_rows=step_rows, max_tokens=max_tokens)


def full_steps(num_rows, rows_per_step):
    return [min(rows_per_step, num_rows - start) for start in range(0, num_rows, rows_per_step)]


def rows_of_steps(arrangement):
    return [
        arrangement.order[pieces[0].start : pieces[-1].stop].tolist() if pieces else [] for pieces in arrangement.steps
    ]


@pytest.mark.parametrize("layout", [*LAYOUTS, BucketedLayout(jitter=0.3)], ids=lambda layout: repr(layout))
@settings(max_examples=100, deadline=None)
@given(row_lengths, st.integers(1, 9), st.one_of(st.none(), st.integers(1, 300)), st.sets(st.integers(0, 79)))
def test_each_row_that_is_not_damaged_is_in_one_step(layout, lengths, rows_per_step, max_tokens, damaged):
    damaged = {row for row in damaged if row < len(lengths)}
    steps = full_steps(len(lengths), rows_per_step)
    if not steps:
        return
    result = arranged(lengths, layout, step_rows=steps, damaged=damaged, max_tokens=max_tokens)
    pieces = [piece for step in result.steps for piece in step]
    edges = [piece.start for piece in pieces] + [len(result.order)]
    assert edges[0] == 0 and [piece.stop for piece in pieces] == edges[1:]
    assert all(piece.stop > piece.start for piece in pieces)
    assert sorted(result.order.tolist()) == sorted(set(range(len(lengths))) - damaged)
    assert len(result.steps) == len(steps)


@pytest.mark.parametrize("layout", LAYOUTS[:2], ids=lambda layout: layout.type)
@given(lengths=row_lengths.filter(bool), rows_per_step=st.integers(1, 9))
def test_padded_and_bucketed_steps_have_the_rows_that_the_geometry_says(layout, lengths, rows_per_step):
    steps = full_steps(len(lengths), rows_per_step)
    result = arranged(lengths, layout, step_rows=steps)
    assert [len(rows) for rows in rows_of_steps(result)] == steps


@given(lengths=row_lengths.filter(bool), rows_per_step=st.integers(1, 9))
def test_no_packed_step_is_empty(lengths, rows_per_step):
    steps = full_steps(len(lengths), rows_per_step)
    result = arranged(lengths, LAYOUTS[2], step_rows=steps)
    assert all(rows_of_steps(result))


@settings(deadline=None)
@given(lengths=row_lengths.filter(bool), budget=st.integers(1, 300))
def test_micro_batches_keep_within_the_token_budget_unless_one_row_is_longer(lengths, budget):
    for layout in LAYOUTS[:2]:
        result = arranged(lengths, layout, step_rows=full_steps(len(lengths), 16), max_tokens=budget)
        for piece in (piece for step in result.steps for piece in step):
            longest = max(lengths[row] for row in result.order[piece.start : piece.stop])
            assert longest * (piece.stop - piece.start) <= budget or piece.stop - piece.start == 1


@pytest.mark.parametrize(("length", "sizes"), [(0, [3, 3, 1]), (1, [3, 3, 1]), (2, [1] * 7), (9, [1] * 7)])
def test_rows_of_a_token_or_none_fill_the_budget_and_longer_ones_go_alone(length, sizes):
    result = arranged([length] * 7, PaddedLayout(), step_rows=[7], max_tokens=3)
    assert [piece.stop - piece.start for piece in result.steps[0]] == sizes


def test_a_packed_micro_batch_has_as_many_sequences_as_the_budget_holds():
    result = arranged([40] * 7, LAYOUTS[2], step_rows=[7], max_tokens=149)
    assert [len(piece.sequence_rows) for piece in result.steps[0]] == [2, 2, 2, 1]


def test_bucketed_steps_hold_rows_of_similar_length():
    lengths = np.random.default_rng(0).integers(1, 50, 512)
    result = arranged(lengths, BucketedLayout(), step_rows=[8] * 64)
    assert all(np.ptp(lengths[rows]) <= 2 for rows in rows_of_steps(result))


def test_jittered_steps_hold_rows_of_lengths_within_the_jitter_and_others_in_every_epoch():
    lengths = np.random.default_rng(0).integers(100, 5000, 4096)
    layout = BucketedLayout(jitter=0.1)
    epochs = [
        rows_of_steps(arranged(lengths, layout, step_rows=[8] * 512, keys=WindowKeys(0, epoch, 0))) for epoch in (0, 1)
    ]
    plain = rows_of_steps(arranged(lengths, BucketedLayout(), step_rows=[8] * 512))
    for rows in epochs[0]:
        assert lengths[rows].max() / lengths[rows].min() < 1.1 / 0.9 * 1.05
    partners = [{row: set(step) for step in steps for row in step} for steps in (*epochs, plain)]
    assert sum(len(partners[0][row] & partners[1][row]) - 1 for row in range(4096)) < 4096
    assert sum(len(partners[0][row] & partners[2][row]) - 1 for row in range(4096)) < 4096


def test_the_same_step_of_two_lanes_has_about_the_same_length():
    rng = np.random.default_rng(0)
    lanes = [rng.integers(1, 500, 512) for _ in range(2)]
    means = [
        [lengths[rows].mean() for rows in rows_of_steps(arranged(lengths, BucketedLayout(), step_rows=[8] * 64))]
        for lengths in lanes
    ]
    np.testing.assert_allclose(means[0], means[1], atol=60)


def test_which_length_comes_when_is_hashed_anew_for_each_window():
    lengths = np.arange(1, 65)
    firsts = {
        tuple(
            rows[0]
            for rows in rows_of_steps(
                arranged(lengths, BucketedLayout(), step_rows=[1] * 64, keys=WindowKeys(0, 0, window))
            )
        )
        for window in range(4)
    }
    assert len(firsts) == 4


@given(lengths=row_lengths.filter(bool), damaged=st.sets(st.integers(0, 79)))
def test_damage_moves_no_other_row_to_another_padded_step(lengths, damaged):
    damaged = {row for row in damaged if row < len(lengths)}
    steps = full_steps(len(lengths), 4)
    whole = rows_of_steps(arranged(lengths, PaddedLayout(), step_rows=steps))
    hurt = rows_of_steps(arranged(lengths, PaddedLayout(), step_rows=steps, damaged=damaged))
    assert hurt == [[row for row in rows if row not in damaged] for rows in whole]


def test_damage_is_spread_over_the_bucketed_steps():
    lengths = np.random.default_rng(0).integers(1, 500, 512)
    result = arranged(lengths, BucketedLayout(), step_rows=[16] * 32, damaged=range(128))
    sizes = [len(rows) for rows in rows_of_steps(result)]
    assert min(sizes) >= 4 and sum(sizes) == 384


@given(lengths=row_lengths)
def test_packed_sequences_hold_what_fits_and_are_nearly_as_few_as_possible(lengths):
    sequences = pack(np.arange(len(lengths)), np.array(lengths, np.int32), 50)
    assert sorted(row for rows in sequences for row in rows) == list(range(len(lengths)))
    assert all(sum(lengths[row] for row in rows) <= 50 for rows in sequences)
    assert len(sequences) <= 11 / 9 * -(-sum(lengths) // 50) * 2 + 1
    half_full = [rows for rows in sequences if sum(lengths[row] for row in rows) <= 25]
    assert len(half_full) <= 1


def test_as_many_full_sequences_as_steps_make_one_each():
    for window in range(8):
        keys = WindowKeys(seed=0, epoch=0, window=window)
        result = arranged([30, 20, 30, 20, 30, 20], LAYOUTS[2], step_rows=[2, 2, 2], keys=keys)
        assert [piece.sequence_rows for step in result.steps for piece in step] == [(2,), (2,), (2,)]
