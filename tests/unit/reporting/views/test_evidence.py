"""Which rung would have been large enough for which gate."""

import pytest

from assay.records.decision import Clause, GateVerdict
from assay.records.ladder import NO_VERDICT, OWN_SIZE, LadderStep, LadderTrial
from assay.reporting.views.evidence import rung_reliability


def step(name: str, *verdicts: GateVerdict, reason: str = "") -> LadderStep:
    """A change whose gain had these verdicts at the rungs r1, r2, .. and, last, at the own size."""
    rungs = [*(f"r{index}" for index in range(1, len(verdicts))), OWN_SIZE]
    trials = [
        LadderTrial(
            rung=rung,
            campaign="c",
            clauses=(Clause(name="gain", type="gain", verdict=verdict, reason=reason or verdict),),
        )
        for rung, verdict in zip(rungs, verdicts, strict=True)
    ]
    return LadderStep(ladder_sha256="", step=name, action="adopt", error_rate=0.01, trials=tuple(trials))


def test_the_smallest_rung_is_the_one_from_which_on_all_verdicts_agree() -> None:
    steps = [step("a", "pass", "pass", "pass", "pass"), step("b", "pass", "fail", "undecided", "undecided")]
    found = {item.rung: item for item in rung_reliability(steps)}
    assert [(item.agreed, item.changes) for item in found.values()] == [(1, 2), (1, 2), (2, 2)]
    assert [item.is_smallest for item in found.values()] == [False, False, True]


def test_a_small_rung_that_agrees_by_luck_is_not_the_smallest_if_a_larger_one_does_not() -> None:
    steps = [step("a", "pass", "fail", "pass", "pass")]
    assert [item.rung for item in rung_reliability(steps) if item.is_smallest] == ["r3"]


@pytest.mark.parametrize("changes", [1, 4, 8])
def test_the_share_that_is_shown_is_clopper_and_pearsons_bound(changes: int) -> None:
    (found,) = rung_reliability([step(f"c{index}", "pass", "pass") for index in range(changes)])
    assert found.least == pytest.approx(0.05 ** (1 / changes))


def test_a_gate_that_could_not_be_judged_says_nothing() -> None:
    assert list(rung_reliability([step("a", "undecided", "undecided", reason=NO_VERDICT)])) == []
