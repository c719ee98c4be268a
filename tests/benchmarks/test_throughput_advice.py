"""Advice is followed on a real cluster by the benchmark that says whether it gains what was promised."""

import pytest

from throughput_advice import Case, Followed, first_is_best, followed
from throughput_forecast import BASE


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_change_is_made_and_its_gain_put_beside_its_promise(netns) -> None:
    """Two nodes on a slow link: with twice the batch there are half the exchanges for as many rows."""
    setting = BASE._replace(lanes=4, lane_s=0.1, gradient_bytes=500_000, rate="8mbit", steps=10)
    [first] = followed("small", Case(setting, 2), seconds=4.0, max_changes=1)
    assert first.promised > 20, "points, as the exchange takes longer than the lanes"
    assert first.gained > 10, "a change that was not made gains nothing"


@pytest.mark.parametrize(
    ("gained", "is_best"),
    [((30.0, 20.0), True), ((20.0, 20.9), True), ((20.0, 30.0), False), ((20.0, 10.0, 21.5), False)],
)
def test_the_first_change_is_the_best_to_a_point(gained: tuple[float, ...], is_best: bool) -> None:
    assert first_is_best([Followed(25.0, value) for value in gained]) is is_best
