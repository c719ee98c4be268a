import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.base.seeds import mix64, unmix64
from assay.data.loader.receipts import NO_ROWS, explain, receipt

row_sets = st.sets(st.integers(0, 2**40), min_size=3, max_size=60).map(sorted)


def keys(rows):
    return np.array(rows, np.uint64)


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_unmixing_gives_back_what_was_mixed(values):
    np.testing.assert_array_equal(unmix64(mix64(keys(values))), keys(values))


@given(row_sets, st.randoms())
def test_a_receipt_ignores_order_and_receipts_add_up(rows, random):
    cut = random.randrange(len(rows))
    shuffled = random.sample(rows, len(rows))
    parts = receipt(keys(shuffled[:cut])).plus(receipt(keys(shuffled[cut:])))
    assert parts == receipt(keys(rows)) != NO_ROWS


@given(row_sets)
def test_the_right_rows_need_no_explanation(rows):
    assert explain(keys(rows), receipt(keys(rows))) == ((), (), True)


@given(row_sets, st.data())
def test_one_or_two_missing_rows_are_named(rows, data):
    missing = data.draw(st.sets(st.sampled_from(rows), min_size=1, max_size=2))
    trained = receipt(keys([row for row in rows if row not in missing]))
    assert explain(keys(rows), trained) == (tuple(sorted(missing)), (), True)


@given(row_sets, st.integers(0, 2**40))
def test_one_row_too_many_is_named_whosever_it_is(rows, extra):
    assert explain(keys(rows), receipt(keys([*rows, extra]))) == ((), (extra,), True)


@given(row_sets, st.data())
def test_a_row_in_the_place_of_another_is_named_with_it(rows, data):
    missing = data.draw(st.sampled_from(rows))
    other = data.draw(st.integers(0, 2**40).filter(lambda row: row != missing))
    trained = receipt(keys([*(row for row in rows if row != missing), other]))
    assert explain(keys(rows), trained) == ((missing,), (other,), True)


@pytest.mark.parametrize(("extra", "is_certain"), [(2**40, True), (2**40 + 1, False)])
def test_a_number_beyond_any_dataset_is_no_rows(extra: int, is_certain: bool) -> None:
    rows = [5, 6, 2**40 - 1]
    too_many = explain(keys(rows), receipt(keys([*rows, extra])))
    extra_row = explain(keys(rows), receipt(keys([*rows[:2], extra])))
    doubt = (tuple(rows), (), False)
    assert too_many == (((), (extra,), True) if is_certain else doubt)
    assert extra_row == (((rows[2],), (extra,), True) if is_certain else doubt)


def test_three_missing_rows_put_all_in_doubt():
    difference = explain(keys(range(10)), receipt(keys(range(7))))
    assert difference == (tuple(range(10)), (), False)


def test_no_rows_have_the_receipt_that_adds_nothing():
    assert receipt(keys([])) == NO_ROWS == (0, 0)
