import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from assay.base.seeds import derive_key, keyed_order, mix64

identities = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 3), max_size=60)


@given(identities, st.integers(0, 2**64 - 1))
def test_a_keyed_order_is_a_permutation_in_which_equals_keep_their_places(values, key):
    keys = np.array(values, np.uint64)
    hashes = mix64(keys ^ np.uint64(key)).tolist()
    expected = sorted(range(len(values)), key=lambda index: hashes[index])
    assert keyed_order(keys, key).tolist() == expected


@given(identities, st.integers(0, 2**64 - 1))
def test_other_identities_do_not_move_the_ones_that_were_there(values, key):
    before = [values[index] for index in keyed_order(np.array(values, np.uint64), key)]
    more = [*values, *(value ^ 1 for value in values)]
    after = [index for index in keyed_order(np.array(more, np.uint64), key) if index < len(values)]
    assert [values[index] for index in after] == before


def test_parts_of_a_key_are_told_apart_by_their_borders_and_types():
    keys = {derive_key("ab", "c"), derive_key("a", "bc"), derive_key("abc"), derive_key(1), derive_key("1")}
    assert len(keys) == 5


def test_mixing_is_the_published_splitmix64():
    """First outputs of the generator seeded with 0, which mixes 0, golden, 2 * golden, ..."""
    golden = 0x9E3779B97F4A7C15
    states = np.array([0, golden, 2 * golden % 2**64], np.uint64)
    assert mix64(states).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
