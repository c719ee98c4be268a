"""What-ifs are held against the plan as it is, under the same luck."""

import pytest

from assay.planning.schedule import Effort
from assay.planning.simulation.offer import baseline_of
from assay.planning.simulation.outcome import safety_of, simulate
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


def test_the_plan_has_its_own_figures_beside_its_what_ifs_and_they_its_changes(small):
    own = {"pilot.gains": [2.0], "pilot.standard_error": 0.2}
    results = what_if_results(small, (), own=own, effort=EFFORT)
    known = safety_of(simulate(small, baseline_of(results[0].plan), num_samples=2000))
    alone = simulate_what_ifs(results, num_samples=200)
    base, changed = simulate_what_ifs(results, num_samples=200, known=known)
    assert base.safety == known != alone[0].safety
    moved = alone[1].safety.verdicts["scale"] - alone[0].safety.verdicts["scale"]
    assert changed.safety.verdicts["scale"] == pytest.approx(min(1.0, known.verdicts["scale"] + moved))
    assert base.error == 0.0 and 0.0 < changed.error < 0.05
