"""Numbers as a person writes them."""

import pytest

from assay.base.units import duration_text, percent_text, tenths_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "0.25 s"), (59.2, "59.2 s"), (75, "1 min 15 s"), (119.6, "2 min 00 s"), (3_599.7, "1 h 00 min"),
        (3_725, "1 h 02 min"), (7_199.9, "2 h 00 min"),
    ],
)  # fmt: skip
def test_a_duration_is_rounded_before_it_is_cut_into_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.2465, "24.7%"), (0.1455, "14.6%"), (0.7035, "70.4%"), (0.0625, "6.3%"), (-0.2465, "-24.7%"),
     (0.24649, "24.6%"), (0.0, "0%"), (1e-5, "<0.1%"), (-1e-5, ">-0.1%"), (0.9995, ">99.9%"), (1.0, "100%")],
)  # fmt: skip
def test_halves_of_a_tenth_of_a_percent_are_rounded_away_from_zero(share: float, text: str) -> None:
    """As decimals: 0.2465 as a float is a hair less."""
    assert percent_text(share) == text


def test_a_column_of_shares_keeps_its_tenths() -> None:
    assert [tenths_text(share) for share in (0.2465, 0.5, 1.0)] == ["24.7%", "50.0%", "100.0%"]
