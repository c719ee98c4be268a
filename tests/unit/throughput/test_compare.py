"""A forecast beside what an attempt took."""

import pytest

from assay.data.loader.lane_shares import LaneShares
from assay.records.throughput import NetworkLink
from assay.throughput.cluster import Cluster
from assay.throughput.compare import MeasuredAttempt, compare_forecast
from throughput_calibrations import calibration_of, equal_steps

FAST = NetworkLink(bytes_per_s=1e15, latency_s=0.0)
CALIBRATION = calibration_of(equal_steps(8, 0.1, data_s=0.2, fixed_s=0.05), commit_held_s=0.3, start_s=2.0)


def measured(**changed: object) -> MeasuredAttempt:
    """As forecast: 0.05 s of fixed work, four lanes, and half of the 1.05 s in which one reads the rows."""
    phases = {"data": 0.075, "generation": 0.0, "compute": 0.45, "communication": 0.0}
    found = MeasuredAttempt("r", 1, LaneShares(8, 2), (0.525,) * 20, phases, 2, 0.3, 2.0, True)
    return found._replace(**changed)


def test_what_came_as_forecast_is_within() -> None:
    found = compare_forecast(CALIBRATION, measured(), Cluster(8, FAST))
    assert found.is_within
    assert found.measured_step_s == pytest.approx(found.step_s.value)
    assert {term.phase for term in found.terms} == {"data", "compute", "checkpoint", "startup"}
    assert [term.off_by_s for term in found.terms] == pytest.approx([0.0] * 4, abs=1e-6)


@pytest.mark.parametrize(
    ("changed", "worst"),
    [
        ({"phases_s": {"data": 0.5, "compute": 0.45, "communication": 0.0}, "step_s": (0.95,) * 20}, "data"),
        (
            {"phases_s": {"data": 0.075, "compute": 0.45, "communication": 0.4}, "step_s": (0.95,) * 20},
            "communication",
        ),
        ({"commit_s": 4.0}, "checkpoint"),
        ({"start_s": 12.0}, "startup"),
    ],
)
def test_the_phase_that_was_wrong_by_the_most_is_named(changed: dict[str, object], worst: str) -> None:
    found = compare_forecast(CALIBRATION, measured(**changed), Cluster(8, FAST))
    assert found.worst == worst
    assert found.is_within == ("step_s" not in changed)


def test_an_attempt_that_went_on_from_a_commit_started_as_a_restart_does() -> None:
    calibration = CALIBRATION.model_copy(update={"restart_s": 0.5})
    found = compare_forecast(calibration, measured(is_first=False), Cluster(8, FAST))
    assert found.worst == "startup"
    assert found.terms[-1].forecast_s == 0.5


def test_it_says_how_far_the_run_is_beyond_what_was_measured() -> None:
    eight = measured(shares=LaneShares(8, 8))
    assert compare_forecast(CALIBRATION, eight, Cluster(8, FAST)).notes == (
        "measured on up to 2 workers; 8 are 4 times as many",
    )
