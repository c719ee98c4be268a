"""What-ifs are held against the plan as it is, under the same luck."""

import pytest

from assay.planning.schedule import Effort
from assay.planning.simulation.questions import played
from assay.planning.what_if import AS_PLANNED, answers

EFFORT = Effort(seconds=20, workers=1)


def test_a_question_that_changes_nothing_saves_nothing_and_a_dropped_activity_saves_its_hours(small):
    asked = played(
        (
            *answers(small, (), own={"title": "Renamed"}, effort=EFFORT),
            *answers(small, (), own={"activities.extra": None, "gates.gate.narrow.drops": []}, effort=EFFORT)[
                1:
            ],
        ),
        num_worlds=500,
    )
    assert [each.answer.title for each in asked[:2]] == [AS_PLANNED, "title=Renamed"]
    assert asked[1].device_hours_saved == 0.0
    assert asked[1].safety == asked[0].safety
    assert asked[2].device_hours_saved > 10
    assert asked[2].answer.plan.device_hours < asked[0].answer.plan.device_hours


def test_where_nothing_fits_there_is_nothing_to_play(small):
    none = played(
        answers(small, (), own={"activities.memo.due": "week 1 day 2"}, effort=EFFORT), num_worlds=100
    )[1]
    assert (none.answer.plan, none.safety, none.device_hours_saved) == (None, None, None)
    assert none.answer.conflict is not None


@pytest.mark.parametrize("points", [2.0, -3.0])
def test_weak_evidence_stops_early_and_saves_what_strong_evidence_spends(small, points):
    own = {"pilot.gains": [points], "pilot.standard_error": 0.2}
    base, asked = played(answers(small, (), own=own, effort=EFFORT), num_worlds=500)
    is_weak = points < 0
    assert (asked.safety.verdicts["stop"] > base.safety.verdicts["stop"]) == is_weak
    assert (asked.device_hours_saved > 0) == is_weak
