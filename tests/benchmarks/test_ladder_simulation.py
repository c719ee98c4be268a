"""Simulated ladders: false adoptions, by the function that decides real campaigns, at every look that one can take."""

import numpy as np
import pytest

from assay.statistics.campaign.looks import LookPlan
from assay.workflows.ladder.rule import next_error_rate
from campaign_simulation import CampaignDesign, CampaignTruth, simulate_campaigns
from variants import soaked

TOTAL, CHANGES = 0.05, 8


def adoptions(gains: tuple[float, ...], *, ladders: int, checkpoints: int) -> np.ndarray:
    """[ladder, change]: whether the campaign of the change scales it, with the error that is its own by then."""
    rng, adopted = np.random.default_rng(50), np.zeros((ladders, 0), bool)
    for gain in gains:
        column = np.zeros(ladders, bool)
        paths, path_of = np.unique(adopted, axis=0, return_inverse=True)
        for index, path in enumerate(paths.tolist()):
            rate = next_error_rate(TOTAL, len(gains), path)
            is_here = path_of.ravel() == index
            design = CampaignDesign(looks=LookPlan(error_rate=rate), num_checkpoints=checkpoints, num_guardrails=0)
            rule = design.rule.model_copy(update={"replication_level": 1.0 - rate})
            found = simulate_campaigns(
                design.model_copy(update={"rule": rule}),
                CampaignTruth(gain=gain, failure_rate=0.0),
                num_campaigns=int(is_here.sum()),
                rng=rng,
            )
            column[is_here] = found.recommendation == "scale"
        adopted = np.column_stack([adopted, column])
    return adopted


@pytest.mark.parametrize("size", [(400, 1), *soaked((10_000, 1), (2_000, 20))])
def test_a_ladder_of_eight_null_changes_adopts_one_in_fewer_than_one_of_twenty(size: tuple[int, int]) -> None:
    """Three looks, four benchmarks whose true gains differ around 0; with 20 checkpoints somebody looks at each."""
    found = adoptions((0.0,) * CHANGES, ladders=size[0], checkpoints=size[1])
    assert found.any(axis=1).mean() <= TOTAL


@pytest.mark.parametrize("ladders", [300, *soaked(5_000)])
def test_null_changes_among_real_ones_are_adopted_as_rarely(ladders: int) -> None:
    gains = (0.06, 0.0, 0.06, 0.06, 0.0, 0.0, 0.06, 0.0)
    found = adoptions(gains, ladders=ladders, checkpoints=1)
    is_null = np.array(gains) == 0.0
    assert found[:, is_null].any(axis=1).mean() <= TOTAL
    assert found[:, ~is_null].mean() > 0.5, "a ladder that adopts nothing controls every error"
