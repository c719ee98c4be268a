"""What a program learns from the decisions of its gates' campaigns."""

from pathlib import Path

import pytest

from assay.base.errors import ConfigError
from assay.planning.program.progress import Progress
from assay.records.decision import Decision
from assay.records.evaluation import Estimate
from assay.workflows.program_gates import GateDecision, gain_points, with_decisions


def decided(unit: str, value: float) -> GateDecision:
    effect = Estimate(value=value, low=value - 0.01)
    decision = Decision.model_construct(unit=unit, effect=effect, campaign="mini")  # type: ignore[call-arg]
    return GateDecision("gate", "pass", decision, Path("x"))


def test_the_gain_is_that_of_the_last_decision_in_points() -> None:
    gain = gain_points([decided("share", 0.05), decided("share", 0.02)])
    assert gain is not None
    assert (gain.value, gain.low, gain.high) == (2.0, pytest.approx(1.0), None)


def test_an_effect_that_is_no_share_has_no_points() -> None:
    assert gain_points([]) is None
    assert gain_points([decided("nats per row", 0.02)]) is None


def test_a_verdict_noted_against_the_campaigns_decision_is_refused() -> None:
    decisions = [decided("share", 0.05)]

    def verdicts_read(*text: str) -> tuple[str, ...]:
        notes = Progress.model_validate({"now": "week 2", "verdicts": {"gate": text} if text else {}})
        return with_decisions(notes, decisions).verdicts["gate"]

    assert (verdicts_read(), verdicts_read("pass"), verdicts_read("again", "pass"), verdicts_read("again")) == (
        ("pass",),
        ("pass",),
        ("again", "pass"),
        ("pass",),
    )
    with pytest.raises(ConfigError, match=r"verdicts\.gate: 'stop' is noted, and its campaign 'mini' decided 'pass'"):
        verdicts_read("stop")
