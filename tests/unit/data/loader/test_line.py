"""Micro-batches that are lines: their arrays, the rows that they take, and what is refused."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from assay.base.errors import DataError
from assay.data.loader.config import BucketedLayout, LineLayout, LoaderConfig, PackedLayout
from assay.data.loader.layouts import pack
from assay.data.loader.line import LineShape, distinct_indices, line_arrays, scored_arrays
from assay.data.loader.loader import Loader
from assay.records.cursor import Cursor

COLUMNS = ("input_ids", "spans", "label", "language")


def padded(lengths):
    """Row r has the tokens 10 r + 1, 10 r + 2, ..."""
    width = max(lengths)
    values = 10 * np.arange(len(lengths))[:, None] + np.arange(1, width + 1)
    lengths = np.array(lengths, np.int32)
    return np.where(np.arange(width) < lengths[:, None], values, 0), lengths


lines = st.lists(st.integers(1, 9), min_size=1, max_size=8).flatmap(
    lambda lengths: st.tuples(
        st.just(lengths),
        st.builds(
            LineShape,
            tokens=st.integers(sum(lengths), sum(lengths) + 30),
            rows=st.integers(len(lengths), len(lengths) + 4),
            row_tokens=st.integers(max(lengths), max(lengths) + 9),
            sequences=st.just(1),
        ),
    )
)


@given(drawn=lines)
def test_rows_stand_end_to_end_and_borders_tell_them_apart(drawn):
    lengths, line = drawn
    input_ids, row_lengths = padded(lengths)
    arrays = line_arrays(input_ids, row_lengths, line)
    ids, positions, borders = arrays["input_ids"][0], arrays["position_ids"][0], arrays["borders"]
    assert ids.shape == positions.shape == (line.tokens,) and borders.shape == (line.num_borders,)
    assert arrays["longest_row"].shape == (line.row_tokens,)
    assert borders[0] == 0 and borders[-1] == line.tokens
    assert ((np.diff(borders) >= 0) & (np.diff(borders) <= line.row_tokens)).all()
    for row, (start, stop) in enumerate(pairwise(borders)):
        tokens = [10 * row + 1 + index for index in range(lengths[row])] if row < len(lengths) else []
        assert ids[start:stop].tolist() == tokens + [0] * (stop - start - len(tokens))
        assert positions[start:stop].tolist() == list(range(stop - start))


@given(drawn=lines, data=st.data())
def test_a_scored_place_predicts_the_next_token_of_its_row(drawn, data):
    lengths, line = drawn
    ids, row_lengths = padded(lengths)
    inside = np.arange(1, ids.shape[1]) < row_lengths[:, None]
    scored = inside & np.array(data.draw(st.lists(st.booleans(), min_size=inside.size, max_size=inside.size))).reshape(
        inside.shape
    ).astype(bool)
    slots = line.rows - 1 - np.arange(len(lengths))
    arrays = scored_arrays(ids, row_lengths, scored, line, slots=slots)
    is_scored, whole = arrays["scored"][0], scored.sum() > line.tokens // 2
    indices = arrays.get("indices", np.arange(line.tokens))
    assert ("indices" in arrays) != whole
    assert len(indices) == len(np.unique(indices)) == (line.tokens if whole else line.tokens // 2)
    assert arrays["targets"][is_scored].tolist() == ids[:, 1:][scored].tolist()
    assert arrays["input_ids"][0][indices[is_scored] + 1].tolist() == ids[:, 1:][scored].tolist()
    assert arrays["row_of"][is_scored].tolist() == np.repeat(slots, scored.sum(axis=1)).tolist()
    assert arrays["num_scored"][slots].tolist() == scored.sum(axis=1).tolist()
    assert arrays["num_scored"].shape == (line.rows,) and arrays["num_scored"].sum() == scored.sum()


def test_further_places_are_distinct():
    line = LineShape(tokens=9, rows=3, row_tokens=9)
    assert distinct_indices(np.array([4, 0, 7]), 6, line).tolist() == [4, 0, 7, 1, 2, 3]


@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=40), most=st.integers(1, 5))
def test_a_line_is_closed_when_it_has_its_rows(lengths, most):
    packed = pack(np.arange(len(lengths)), np.array(lengths, np.int32), 20, most)
    assert sorted(np.concatenate(packed).tolist()) == list(range(len(lengths)))
    assert max(map(len, packed)) <= most


def config_of(**changes):
    layout = LineLayout(type="line", tokens=20)
    defaults = {"lanes": 4, "global_batch_size": 8, "window_rows": 16, "shuffle_radius_windows": 1, "threads": 1}
    return LoaderConfig(**{**defaults, "layout": layout, **changes})


def batches_of(loader, step=0, num_steps=None):
    shares = loader.shares(loader.cursor_at(step), range(4), num_steps or loader.steps_per_epoch - step)
    return [[lane.micro_batches for lane in share.lanes] for share in shares]


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.integers(0, 25), min_size=1, max_size=6).filter(any), rows=st.integers(1, 4))
def test_every_row_is_in_one_line_that_holds_it(fake_source, sizes, rows):
    source = fake_source(sizes)
    loader = Loader(source, config_of(global_batch_size=4 * rows), COLUMNS)
    batches = [batch for step in batches_of(loader) for lane in step for batch in lane]
    assert sorted(row for batch in batches for row in batch.row_ids.tolist()) == source.all_rows
    for batch in batches:
        assert batch.line == LineShape(20, min(2 * rows, 20), 20) and batch.packing is None
        assert len(batch.row_ids) <= batch.line.rows and batch.tokens.lengths.sum() <= 20
        assert batch.take([0]).line is None


def test_lines_hold_the_rows_of_packed_sequences_if_no_line_is_closed_early(fake_source):
    source = fake_source([13, 40, 1, 0, 29])
    packed = config_of(layout=PackedLayout(type="packed", sequence_tokens=20), max_micro_batch_tokens=20)
    changes = {"global_batch_size": 40, "window_rows": 40}
    loaders = [Loader(source, config.model_copy(update=changes), COLUMNS) for config in (config_of(), packed)]
    rows = [[b.row_ids.tolist() for step in batches_of(loader) for lane in step for b in lane] for loader in loaders]
    assert rows[0] == rows[1]


def test_a_resume_at_every_step_continues_exactly(fake_source):
    loader = Loader(fake_source([13, 40, 1, 0, 29]), config_of(), COLUMNS)

    def rows(step):
        steps = batches_of(loader, step, 2 * loader.steps_per_epoch - step)
        return [[[batch.row_ids.tolist() for batch in lane] for lane in step] for step in steps]

    expected = rows(0)
    for step in range(2 * loader.steps_per_epoch):
        assert rows(step) == expected[step:]


def test_a_line_holds_both_sequences_of_a_pair(fake_source):
    loader = Loader(
        fake_source([60]), config_of(layout=LineLayout(type="line", tokens=13)), ("input_ids", "rejected_ids")
    )
    for batch in (batch for step in batches_of(loader) for lane in step for batch in lane):
        assert batch.num_tokens <= 13 and len(batch.row_ids) <= batch.line.rows == 4


@pytest.mark.parametrize(
    ("keys", "named"), [({"tokens": 8}, "tokens"), ({"tokens": 20, "row_tokens": 8}, "row_tokens")]
)
def test_a_row_that_is_too_long_is_named(fake_source, keys, named):
    source = fake_source([200])
    layout = LineLayout(type="line", **keys)
    with pytest.raises(DataError, match=rf"has 9 tokens and loader.layout.{named} is \d: rows are never cut") as caught:
        list(Loader(source, config_of(layout=layout), COLUMNS).shares(Cursor(), range(4), 20))
    assert source.length_of(int(str(caught.value).split()[1])) == 9


def test_keys_that_exclude_each_other_are_refused():
    with pytest.raises(ValidationError, match="row_tokens=21 exceeds tokens=20"):
        LineLayout(type="line", tokens=20, row_tokens=21)
    with pytest.raises(ValidationError, match=r"max_micro_batch_tokens: loader.layout.tokens is the size of a line"):
        config_of(max_micro_batch_tokens=20)


def test_rows_are_not_evaluated_in_lines():
    config = config_of().for_evaluation()
    assert config.layout == BucketedLayout() and config.max_micro_batch_tokens == 20
    assert config_of().has_budget and not LoaderConfig().has_budget
