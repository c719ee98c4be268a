"""A forecast is put beside a real cluster by the benchmark that says how near it comes."""

import pytest

from throughput_forecast import BASE, between_nodes, cells_of, killed

SMALL = BASE._replace(lanes=8, lane_s=0.2, rate="100mbit", steps=10)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_steps_of_a_cluster_are_put_beside_their_forecast(netns) -> None:
    """Three nodes have 3, 3 and 2 lanes. Beside other work a step may take much longer."""
    [cell] = cells_of("small", SMALL, [3], seconds=4.0)
    assert (cell.forecast.world_size, cell.forecast.nodes, cell.measured.workers) == (3, (1, 1, 1), 3)
    assert 0.95 * 3 * 0.2 < cell.forecast_s < 2 * 3 * 0.2, "it was calibrated beside other work, too"
    assert -0.5 < cell.error < 0.2
    assert cell.forecast.terms["uneven"] == pytest.approx(0.2 / 3, rel=0.2)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_with_deaths_takes_its_steps_and_a_restart_for_each(netns) -> None:
    found = killed(SMALL._replace(workers=2, nodes=2, commit_every=2), [(5, 1), (8, 0)])
    assert found.hours * 3600 > 10 * 4 * 0.2 + 2 * found.restart_s > 9.0


@pytest.mark.slow
def test_a_link_carries_what_it_is_limited_to(netns) -> None:
    link = between_nodes("40mbit")
    assert 0.8 * 5e6 < link.bytes_per_s < 1.05 * 5e6
    assert link.latency_s < 0.05
