"""Which optimizer a pilot proposes, and when too few outer steps remain for a momentum."""

from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.base.errors import ConfigError
from assay.training.outer.config import AverageConfig, NesterovConfig
from assay.training.outer.pilot import AVERAGE, CANDIDATES, PilotRun, least_outer_steps, outer_warnings, propose


def nesterov(rate: float, momentum: float) -> NesterovConfig:
    return NesterovConfig(type="nesterov", rate=rate, momentum=momentum)


SLOW, FAST = nesterov(0.8, 0.5), nesterov(0.7, 0.9)


@pytest.mark.parametrize(
    "slow, fast, expected",
    [
        ((3.0, 3.1), (3.2, 3.3), AVERAGE),
        ((2.8, 2.8), (2.7, 2.7), FAST),
        ((2.8, 2.8), (2.9, 2.9), SLOW),
        ((2.8, 2.8), (2.0, 3.1), SLOW),  # the lower mean is due to one seed
        ((2.9, 3.1), (2.0, 3.1), AVERAGE),
        ((3.0, 3.0), (3.0, 3.0), AVERAGE),
        ((nan, 2.0), (inf, 2.0), AVERAGE),
        ((nan, 2.0), (2.9, 2.9), FAST),
    ],
)
def test_an_optimizer_is_proposed_if_it_beats_averaging_in_every_seed(slow, fast, expected) -> None:
    runs = [PilotRun(FAST, fast), PilotRun(AVERAGE, (3.0, 3.0)), PilotRun(SLOW, slow)]
    assert propose(runs).optimizer == expected


def test_the_reason_has_the_figures() -> None:
    retained = propose([PilotRun(AVERAGE, (3.0, 3.2)), PilotRun(FAST, (3.6, 3.8)), PilotRun(SLOW, (3.0, 3.4))])
    assert retained.reason == (
        "no candidate beat averaging in every seed (2 seeds; averaging 3.1000, "
        "Nesterov (rate 0.8, momentum 0.5) 3.2000)"
    )
    assert propose([PilotRun(AVERAGE, (3.0,)), PilotRun(FAST, (2.5,))]).reason == (
        "it beat averaging in every seed (1 seed; 2.5000, averaging 3.0000)"
    )


@pytest.mark.parametrize("runs", [[], [PilotRun(FAST, (1.0,))], [PilotRun(AVERAGE, ())]])
def test_a_pilot_without_averaging_proposes_nothing(runs) -> None:
    with pytest.raises(ConfigError, match=r"needs a finished run with outer\.optimizer\.type=average"):
        propose(runs)


def test_a_pilot_with_unequal_seeds_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"1 losses for Nesterov \(rate 0.7, .* and 2 for averaging\. Train all"):
        propose([PilotRun(AVERAGE, (1.0, 1.0)), PilotRun(FAST, (1.0,))])


@pytest.mark.parametrize("momentum, least", [(0.0, 2), (0.3, 3), (0.5, 4), (0.8, 10), (0.9, 20), (0.95, 40)])
def test_the_warning_ends_where_the_momentum_has_settled(momentum, least) -> None:
    optimizer = nesterov(1 - momentum, momentum)
    (warning,) = outer_warnings(optimizer, num_outer_steps=least - 1)
    assert f"momentum={momentum:g}: {least - 1} outer steps remain" in warning and f"after about {least}," in warning
    assert "Use outer.optimizer.type=average, a smaller momentum, or a smaller outer.every" in warning
    assert outer_warnings(optimizer, num_outer_steps=least) == []


@pytest.mark.parametrize("rate, momentum, factor", [(0.7, 0.9, "7"), (1.1, 0.5, "2.2"), (2.5, 0.0, "2.5")])
def test_large_factors_are_warned_of(rate, momentum, factor) -> None:
    (warning,) = outer_warnings(nesterov(rate, momentum), num_outer_steps=1000)
    assert f"rate={rate:g}: outer steps move the weights up to {factor} times as far" in warning
    assert "(assay train pilot)" in warning


def test_averaging_is_never_warned_of() -> None:
    assert outer_warnings(AverageConfig(), num_outer_steps=0) == []
    assert least_outer_steps(AverageConfig()) == 0


@settings(deadline=None)
@given(momentum=st.floats(0, 0.99))
def test_a_settled_momentum_has_most_of_its_final_size(momentum) -> None:
    found = 0.0
    for _ in range(least_outer_steps(nesterov(1.0, momentum))):
        found = momentum * found + 1
    assert found * (1 - momentum) >= 0.8


def test_averaging_is_the_first_candidate() -> None:
    assert CANDIDATES[0] == AVERAGE
    assert len(set(map(repr, CANDIDATES))) == len(CANDIDATES)
