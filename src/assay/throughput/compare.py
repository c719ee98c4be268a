"""Compares a forecast with an attempt of a run, phase by phase."""

from collections.abc import Mapping
from typing import NamedTuple

from assay.base.units import number_of
from assay.data.loader.lane_shares import LaneShares
from assay.records.throughput import CheckedTerm, ThroughputCalibration, ThroughputCheck
from assay.throughput.cluster import Cluster
from assay.throughput.forecast import forecast_attempt

MIN_SHARE = 0.001
"""A phase below this share of a step, both forecast and measured, is left out."""


class MeasuredAttempt(NamedTuple):
    """Times of an attempt, from its metrics."""

    run_id: str
    attempt: int
    shares: LaneShares
    step_s: tuple[float, ...]
    """[step]: seconds since the previous step ended, without commits and evaluations, on the slowest worker."""
    phases_s: Mapping[str, float]
    """Phase -> seconds per step, averaged over workers: data, generation, compute, communication."""
    num_commits: int
    commit_s: float
    """Mean seconds that training pauses for one commit."""
    start_s: float
    """Seconds until the first step ends, minus one mean step."""
    is_first: bool
    """False if the attempt resumed from a commit."""


def compare_forecast(
    calibration: ThroughputCalibration, measured: MeasuredAttempt, cluster: Cluster
) -> ThroughputCheck:
    """Compare the forecast with `measured`; the lanes of each worker are those of the attempt, not of
    `cluster`."""
    expected = forecast_attempt(calibration, measured.shares, cluster)
    num_steps = len(measured.step_s)
    step_s = sum(measured.step_s) / num_steps
    terms = [
        CheckedTerm(phase=phase, count=num_steps, forecast_s=seconds, measured_s=measured.phases_s.get(phase, 0.0))
        for phase, seconds in expected.phases.items()
        if max(seconds, measured.phases_s.get(phase, 0.0)) > MIN_SHARE * step_s
    ]
    if measured.num_commits:
        terms.append(
            CheckedTerm(
                phase="checkpoint",
                count=measured.num_commits,
                forecast_s=calibration.commit_held_s,
                measured_s=measured.commit_s,
            )
        )
    start_s = calibration.start_s if measured.is_first else calibration.restart_s
    terms.append(CheckedTerm(phase="startup", count=1, forecast_s=start_s, measured_s=measured.start_s))
    interval = expected.step_s
    assert interval.low is not None and interval.high is not None, "a forecast has an interval"
    return ThroughputCheck(
        calibration_sha256=calibration.digest(),
        run_id=measured.run_id,
        attempt=measured.attempt,
        world_size=measured.shares.world_size,
        num_steps=num_steps,
        step_s=interval,
        measured_step_s=step_s,
        is_within=interval.low <= step_s <= interval.high,
        terms=tuple(terms),
        worst=max(terms, key=lambda term: abs(term.off_by_s)).phase,
        notes=tuple(_notes(calibration, measured)),
    )


def _notes(calibration: ThroughputCalibration, measured: MeasuredAttempt) -> list[str]:
    size, largest = measured.shares.world_size, calibration.largest_measured
    if size <= largest:
        return []
    return [f"measured on up to {number_of(largest, 'worker')}; {size} are {size / largest:g} times as many"]
