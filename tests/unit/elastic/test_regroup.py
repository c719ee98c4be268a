"""When a run restarts for nodes that have come: never for less than it costs."""

import pytest

from assay.elastic.regroup import LEAST_STEPS, RegroupWatch
from assay.records.run import Attempt
from assay.store.heartbeat import Beat
from machine import MACHINE


def watched(*, left: int, restart_s: float, world_size: int = 2, num_steps: int | None = 1000) -> RegroupWatch:
    """Of 8 lanes, a second a step; the attempt began at second 100."""
    start = 1000 - left - LEAST_STEPS - 1
    attempt = Attempt(run_id="r", attempt=1, world_size=world_size, start_step=start, started_s=0.0, **MACHINE)
    watch = RegroupWatch(attempt, num_lanes=8, num_steps=num_steps, began_s=100.0)
    for created in range(LEAST_STEPS + 2):
        beats = [Beat(start + created + ahead, "compute", 1.0, 0.0, 0.0) for ahead in (0, 1)]
        watch.look(beats, 100.0 + (restart_s + created - 1 if created else 0.0))
    return watch


@pytest.mark.parametrize(("left", "pays"), [(41, True), (39, False), (0, False)])
def test_it_pays_where_what_it_saves_is_more_than_two_restarts(left: int, pays: bool) -> None:
    """From 4 lanes of the busiest to 2: half of what is left."""
    assert watched(left=left, restart_s=10.0).pays(4) is pays


def test_from_four_lanes_of_the_busiest_to_three_is_a_quarter_and_to_as_many_is_nothing() -> None:
    watch = watched(left=100, restart_s=10.0)
    assert watch.pays(3) and not watched(left=79, restart_s=10.0).pays(3)
    assert not watched(left=900, restart_s=0.01, world_size=4).pays(7)
    assert watched(left=900, restart_s=0.01, world_size=4).pays(8)


def test_nothing_is_known_to_pay_before_some_steps() -> None:
    attempt = Attempt(run_id="r", attempt=1, world_size=2, start_step=0, started_s=0.0, **MACHINE)
    watch = RegroupWatch(attempt, num_lanes=8, num_steps=10**6, began_s=0.0)
    assert not watch.pays(4)
    for step in range(LEAST_STEPS + 1):
        watch.look([Beat(step, "compute", 1.0, 0.0, 0.0)], float(step))
        assert not watch.pays(4)
    watch.look([Beat(LEAST_STEPS + 1, "compute", 1.0, 0.0, 0.0)], LEAST_STEPS + 1.0)
    assert watch.pays(4)
