"""Times as texts."""

import math

import pytest

from assay.base.clock import utc_text


def test_a_time_is_written_in_utc() -> None:
    assert utc_text(1_795_000_000.9) == "2026-11-18T11:06:40Z"


@pytest.mark.parametrize("at_s", [1.8e12, 1e18, -1e18, math.nan, math.inf])
def test_a_time_of_a_clock_that_was_wrong_is_named_in_seconds(at_s: float) -> None:
    assert utc_text(at_s) == f"{at_s:.6g} s after 1970"
