"""What a program learns from the decisions of its gates' campaigns."""

from pathlib import Path

import pytest

from assay.launch.program_gates import GateDecision, gain_points
from assay.records.decision import Decision
from assay.records.evaluation import Estimate


def decided(unit: str, value: float) -> GateDecision:
    effect = Estimate(value=value, low=value - 0.01)
    return GateDecision("gate", "pass", Decision.model_construct(unit=unit, effect=effect), Path("x"))  # type: ignore[call-arg]


def test_the_gain_is_that_of_the_last_decision_in_points() -> None:
    gain = gain_points([decided("share", 0.05), decided("share", 0.02)])
    assert gain is not None
    assert (gain.value, gain.low, gain.high) == (2.0, pytest.approx(1.0), None)


def test_an_effect_that_is_no_share_has_no_points() -> None:
    assert gain_points([]) is None
    assert gain_points([decided("nats per row", 0.02)]) is None
