"""Numbers as a person writes them."""

import pytest

from assay.base.units import duration_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "0.25 s"), (59.2, "59.2 s"), (75, "1 min 15 s"), (119.6, "2 min 00 s"), (3_599.7, "1 h 00 min"),
        (3_725, "1 h 02 min"), (7_199.9, "2 h 00 min"),
    ],
)  # fmt: skip
def test_a_duration_is_rounded_before_it_is_cut_into_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
