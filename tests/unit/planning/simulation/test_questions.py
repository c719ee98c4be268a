"""What-ifs are held against the plan as it is, under the same luck."""

import pytest

from assay.planning.schedule import Effort
from assay.planning.simulation.questions import simulate_what_ifs
from assay.planning.what_if import AS_PLANNED, what_if_results

EFFORT = Effort(seconds=20, workers=1)


def test_a_question_that_changes_nothing_saves_nothing_and_a_dropped_activity_saves_its_hours(small):
    changed = simulate_what_ifs(
        (
            *what_if_results(small, (), own={"title": "Renamed"}, effort=EFFORT),
            *what_if_results(small, (), own={"activities.extra": None, "gates.gate.narrow.drops": []}, effort=EFFORT)[
                1:
            ],
        ),
        num_samples=500,
    )
    assert [question.result.title for question in changed[:2]] == [AS_PLANNED, "title=Renamed"]
    assert changed[1].device_hours_saved == 0.0
    assert changed[1].safety == changed[0].safety
    assert changed[2].device_hours_saved > 10
    assert changed[2].result.plan.device_hours < changed[0].result.plan.device_hours


def test_where_nothing_fits_there_is_nothing_to_play(small):
    none = simulate_what_ifs(
        what_if_results(small, (), own={"activities.memo.due": "week 1 day 2"}, effort=EFFORT), num_samples=100
    )[1]
    assert (none.result.plan, none.safety, none.device_hours_saved) == (None, None, None)
    assert none.result.conflict is not None


@pytest.mark.parametrize("points", [2.0, -3.0])
def test_weak_evidence_stops_early_and_saves_what_strong_evidence_spends(small, points):
    own = {"pilot.gains": [points], "pilot.standard_error": 0.2}
    base, changed = simulate_what_ifs(what_if_results(small, (), own=own, effort=EFFORT), num_samples=500)
    is_weak = points < 0
    assert (changed.safety.verdicts["stop"] > base.safety.verdicts["stop"]) == is_weak
    assert (changed.device_hours_saved > 0) == is_weak
