"""What is drawn: the stated distributions, one stream per name, gates with the power of their seeds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.base.errors import ConfigError
from assay.planning.simulation.compile import compile_program
from assay.planning.simulation.greedy_schedule import greedy_schedule
from assay.planning.simulation.sampling import QuasiRandom, sample_program, triangular_quantile


def sampled(program, **options):
    compiled = compile_program(program, greedy_schedule(program))
    return compiled, sample_program(compiled, **{"num_samples": 20_000, **options})


def test_dropping_an_activity_changes_no_luck_of_the_others(small):
    fewer, fewer_samples = sampled(small.with_options(["no_extra"]), num_samples=50)
    all_of_it, samples = sampled(small, num_samples=50)
    for index, item in enumerate(fewer.items):
        same = all_of_it.network.index(item.name)
        np.testing.assert_array_equal(
            fewer_samples.replay_samples.duration_h[index], samples.replay_samples.duration_h[same]
        )


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 100), min_size=3, max_size=3).map(sorted))
def test_a_triangle_stays_inside_its_ends_and_keeps_its_mean(ends):
    values = triangular_quantile(*ends, np.linspace(0.0005, 0.9995, 1000))  # type: ignore[call-arg]
    assert (values >= ends[0] - 1e-9).all()
    assert (values <= ends[2] + 1e-9).all()
    assert values.mean() == pytest.approx(sum(ends) / 3, abs=0.01 * (ends[2] - ends[0]) + 1e-6)


def test_interrupts_cost_as_often_and_as_much_as_stated():
    lost = QuasiRandom(num_samples=50_000, seed=0).poisson_sum(0.8, 1.0, 2.0, "x")
    assert lost.mean() == pytest.approx(0.8 * 1.5, rel=0.02)
    assert (lost == 0).mean() == pytest.approx(np.exp(-0.8), abs=0.01)


def test_many_interrupts_cost_as_much_as_stated_in_as_little_memory():
    lost = QuasiRandom(num_samples=50_000, seed=0).poisson_sum(1e6, 1.0, 2.0, "x")
    assert lost.mean() == pytest.approx(1.5e6, rel=1e-4)
    assert lost.std() == pytest.approx(np.sqrt(1e6 * 7 / 3), rel=0.02)  # rate times the mean square of a part


def test_work_scatters_around_the_stated_median(small):
    compiled, samples = sampled(small)
    hours = samples.replay_samples.duration_h[compiled.network.index("prepare")]
    assert np.median(hours) == pytest.approx(16 * small.noise.work_factor, rel=0.02)
    assert np.log(hours).std() == pytest.approx(small.noise.work_sigma, rel=0.03)


def test_the_gain_is_the_belief_after_the_pilot(small):
    _, samples = sampled(small)
    weight = 4.0 / (4.0 + 1.5**2)
    assert samples.gain.mean() == pytest.approx(weight * 3.0, abs=0.03)
    assert samples.gain.std() == pytest.approx(np.sqrt(weight) * 1.5, rel=0.02)


def test_a_gate_errs_as_its_seeds_and_items_let_it(small):
    _, samples = sampled(small)
    look = samples.gates["gate"][0]
    error = np.sqrt(2 * 1.0**2 / 2 + 100**2 * 0.3 / 4000)
    assert look.standard_error[0] == pytest.approx(error)
    assert (look.estimate - samples.gain).std() == pytest.approx(error, rel=0.02)


def test_a_second_look_knows_more_and_says_again_no_more(small):
    _, samples = sampled(small)
    first, second = samples.gates["gate"]
    assert (second.estimate - samples.gain).std() < 0.9 * (first.estimate - samples.gain).std()
    assert "again" not in second.verdict


def test_a_late_risk_delays_its_event_as_often_as_stated(small):
    compiled, samples = sampled(small)
    delay = samples.replay_samples.delay_h[compiled.network.index("data")]
    assert (delay > 0).mean() == pytest.approx(0.5, abs=0.015)
    assert delay[delay > 0].mean() == pytest.approx(4 * 24, rel=0.02)


def test_a_booking_overruns_as_often_and_as_long_as_stated(small):
    """A program with this risk alone: all its planned cuts lie on whole hours."""
    booking = {"share": 0.5, "since": "week 2", "until": "end of week 2"}
    effect = {"type": "booking_overruns", "booking": "other", "days": [2, 5, 7]}
    risk = {"title": "It stays", "probability": 0.25, "owner": "lead", "effect": effect}
    _, samples = sampled(small.changed({"capacity.bookings": {"other": booking}, "risks": {"stays": risk}}))
    longer = samples.replay_samples.reduction_end_h[0] - 14 * 24
    assert (longer > 0).mean() == pytest.approx(0.25, abs=0.01)
    assert longer[longer > 0].mean() == pytest.approx(24 * 14 / 3, rel=0.02)


def test_a_gate_without_a_pilot_says_what_is_missing(small):
    lonely = small.model_copy(update={"pilot": None})
    with pytest.raises(ConfigError, match=r"gates.gate.evidence reads a gain"):
        sample_program(compile_program(lonely, greedy_schedule(lonely)), num_samples=10)


def test_each_path_through_the_gates_has_its_share_and_gains_of_its_own(small):
    """A tenth of the seeds' scatter that throwing the dice would give, 0.0035 for a share of a half."""
    lucks = [sampled(small, num_samples=4096, seed=seed)[1] for seed in range(8)]
    for verdict in ("stop", "pass", "again"):
        shares = [(samples.gates["gate"][0].verdict == verdict).mean() for samples in lucks]
        assert 0.02 < np.mean(shares) < 0.9
        assert np.std(shares) < 0.0008, verdict
    gains = [samples.gain[samples.gates["gate"][0].verdict == "stop"].mean() for samples in lucks]
    assert np.std(gains) < 0.03


def test_names_beyond_the_last_axis_are_drawn_at_random():
    sampler = QuasiRandom(num_samples=1000, seed=0, num_axes=4)
    columns = [sampler.uniform("x", number) for number in range(8)]
    assert np.abs(np.corrcoef(columns) - np.eye(8)).max() < 0.15
    np.testing.assert_array_equal(columns[7], sampler.uniform("x", 7))
