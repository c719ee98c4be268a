"""Runs by scale, from tables that people write."""

import pytest

from assay.base.errors import DataError
from assay.statistics.scaled_scores import read_scaled_scores


def test_a_table_with_a_byte_order_mark_is_read(tmp_path):
    (tmp_path / "t.csv").write_text("\ufeffscale,recipe,seed,score\n1e6,a,0,0.5\n1e6,b,,0.25,\n")
    assert [(run.recipe, run.seed, run.score) for run in read_scaled_scores(tmp_path / "t.csv")] == [
        ("a", 0, 0.5),
        ("b", 0, 0.25),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scale,recipe,score\n1e6,a,0,5\n", "line 2: more cells than the heading names"),
        ("scale,recipe,score,score\n1e6,a,0.5,0.6\n", "names 'score' twice"),
        ("scale,score\n1e6,0.5\n", "no column recipe"),
    ],
)
def test_a_table_that_says_two_things_is_refused(tmp_path, text, message):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_scaled_scores(tmp_path / "t.csv")
