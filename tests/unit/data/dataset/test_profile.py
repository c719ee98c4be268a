"""The most common values of all shards are those of one `Counter`, ties included."""

from collections import Counter

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data.dataset.profile import NUM_TOP_VALUES, ColumnCounts, merged_columns

VALUES = st.lists(st.integers(0, 40).map(str), max_size=60)


@settings(deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=5))
def test_top_values_are_those_of_a_counter(shards: list[list[str]]) -> None:
    expected: Counter[str] = Counter()
    parts = []
    for values in shards:
        counts = ColumnCounts()
        counts.add(pa.chunked_array([pa.array(values, pa.string())]))
        expected.update(counts.values)
        counts.pack()
        parts.append({"language": counts})
    profile = merged_columns(parts)["language"].profile("language", pa.string())
    assert profile.top_values == tuple(expected.most_common(NUM_TOP_VALUES))
