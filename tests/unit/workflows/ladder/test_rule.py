"""The error that a ladder spends, and what becomes of a change."""

from typing import get_args

import numpy as np
import pytest

from assay.records.decision import Clause, GateVerdict
from assay.records.ladder import BASE_STEP, NO_VERDICT, OWN_SIZE, TOGETHER_STEP, LadderAction, LadderTrial
from assay.statistics.campaign.looks import LookPlan
from assay.statistics.campaign.rule import CampaignEvidence, CampaignRule, judge
from assay.statistics.effect import Effect
from assay.workflows.ladder.rule import action_of, next_error_rate

TOTAL, CHANGES, SEEDS, LADDERS = 0.05, 8, 5, 20_000
RULE = CampaignRule(least_effect=0.01, prior_sd=0.0133)


def adoptions(gains: tuple[float, ...], *, by_rule: bool = False, ladders: int = LADDERS) -> np.ndarray:
    """[ladder, change]: whether the campaign of a change scales it, with the error that the ladder gives it; by the
    clause on the gain alone, or by the whole rule."""
    rng = np.random.default_rng(50)
    adopted = np.zeros((ladders, 0), bool)
    for gain in gains:
        paths, path_of = np.unique(adopted, axis=0, return_inverse=True)
        rates = np.array([next_error_rate(TOTAL, CHANGES, path) for path in paths.tolist()])[path_of.ravel()]
        levels = {rate: LookPlan(gate_seeds=(SEEDS,), error_rate=rate).gate_levels()[0] for rate in set(rates.tolist())}
        by_seed = gain + 0.01 * rng.normal(size=(ladders, SEEDS))
        none, variance = np.zeros(ladders), by_seed.var(axis=1, ddof=1) / SEEDS
        mean, degrees = by_seed.mean(axis=1), np.full(ladders, SEEDS - 1.0)
        effect = Effect(mean, variance, none, none, degrees, 1e9)
        level = np.array([levels[rate] for rate in rates.tolist()])
        evidence = CampaignEvidence(
            effect=effect, level=level, is_gate=True, replication_variance=variance, least_without_one=mean,
            share_positive=np.ones(ladders),
        )  # fmt: skip
        is_adopted = judge(evidence, RULE).recommendation == "scale" if by_rule else effect.lower(level) > 0.0
        adopted = np.column_stack([adopted, is_adopted])
    return adopted


def standard_error(share: float) -> float:
    return float(np.sqrt(share * (1.0 - share) / LADDERS))


def test_eight_null_changes_are_adopted_as_often_as_bonferroni_says() -> None:
    """A look has 9 of 10 parts of its campaign's error; the rest is for undeclared looks. Seeds alone vary, so the
    clause on the gain is Student's test, and is exact."""
    expected = 1.0 - (1.0 - 0.9 * TOTAL / CHANGES) ** CHANGES
    found = float(adoptions((0.0,) * CHANGES).any(axis=1).mean())
    assert found == pytest.approx(expected, abs=4 * standard_error(expected))
    assert expected < TOTAL


def test_adopted_changes_hand_their_error_on_and_no_more() -> None:
    """Four gains that none misses, then four null changes: the fifth has five shares, the others one each."""
    found = adoptions((1.0,) * 4 + (0.0,) * 4)
    assert found[:, :4].all()
    expected = 1.0 - (1.0 - 0.9 * 5 * TOTAL / CHANGES) * (1.0 - 0.9 * TOTAL / CHANGES) ** 3
    assert float(found[:, 4:].any(axis=1).mean()) == pytest.approx(expected, abs=4 * standard_error(expected))
    assert expected < TOTAL


def test_the_whole_rule_adopts_null_changes_more_rarely_still() -> None:
    assert adoptions((0.0,) * CHANGES, by_rule=True, ladders=2_000).any(axis=1).mean() < 0.01


def test_the_shares_never_sum_to_more_than_the_total_for_null_changes() -> None:
    """Whatever was adopted: of the changes that were not, the last of a row of adopted ones included, the rates sum to
    at most the total."""
    for pattern in range(2**CHANGES):
        adopted = [bool(pattern >> index & 1) for index in range(CHANGES)]
        rates = [next_error_rate(TOTAL, CHANGES, adopted[:index]) for index in range(CHANGES)]
        assert sum(rate for rate, was in zip(rates, adopted, strict=True) if not was) <= TOTAL + 1e-12


def action(*clauses: Clause, step: str = "change") -> LadderAction:
    return action_of(step, [LadderTrial(rung=OWN_SIZE, campaign="", clauses=clauses)])


def clause(verdict: GateVerdict, reason: str = "", gate: str = "gain") -> Clause:
    return Clause(name=gate, type=gate, verdict=verdict, reason=reason or verdict)


@pytest.mark.parametrize("other", get_args(GateVerdict))
def test_a_broken_gate_rolls_a_change_back_whatever_it_gains(other: GateVerdict) -> None:
    assert action(clause(other), clause("fail", gate="warnings")) == "roll back"


def test_a_change_is_adopted_if_every_gate_that_could_be_judged_passes() -> None:
    assert action(clause("pass"), clause("undecided", NO_VERDICT, "code_length")) == "adopt"
    assert action(clause("pass"), clause("undecided", gate="code_length")) == "keep out"
    assert action(clause("undecided"), clause("pass", gate="warnings")) == "keep out"


def test_a_base_that_leaves_its_law_stops_the_ladder_at_every_step() -> None:
    for step in (BASE_STEP, "change"):
        assert action(clause("pass"), clause("fail", gate="base_loss"), step=step) == "stop"
    assert action(step=BASE_STEP) == action_of(TOGETHER_STEP, []) == "continue"


def test_changes_that_interact_stay_and_ones_that_harm_together_are_rolled_back() -> None:
    interaction = clause("fail", gate="interaction")
    assert action(clause("pass"), interaction, step=TOGETHER_STEP) == "continue"
    assert action(clause("fail"), interaction, step=TOGETHER_STEP) == "roll back"
