"""A forecast on a terminal: parts that add up, gains that are gains."""

import re

import pytest

from assay.records.throughput import NetworkLink, ThroughputAdvice
from assay.reporting.documents.throughput import forecast_document
from assay.reporting.terminal.document import print_document
from assay.throughput.cluster import Cluster
from assay.throughput.forecast import forecast
from assay.throughput.outer_steps import forecast_clusters
from assay.training.outer.config import OuterConfig
from throughput_calibrations import calibration_of, equal_steps, two

NETWORK = NetworkLink(bytes_per_s=25e9, latency_s=5e-6)
CALIBRATION = calibration_of(
    equal_steps(8, 0.18, data_s=0.003, fixed_s=0.08),
    two_workers=two(1e9, 0.02, contention=0.8),
    commit_held_s=2.0,
)


def shown(capsys: pytest.CaptureFixture[str], *advice: ThroughputAdvice) -> str:
    found = forecast(CALIBRATION, [1, 2, 8], Cluster(8, None, NETWORK)).model_copy(update={"advice": advice})
    print_document(forecast_document(found, CALIBRATION, advised_for=8 if advice else None))
    return capsys.readouterr().out


def advice(option: str, *, time_saved: float, device_hours_saved: float) -> ThroughputAdvice:
    return ThroughputAdvice(
        change=option, overrides=(option,), world_size=8, time_saved=time_saved,
        device_hours_saved=device_hours_saved, changes_learning=False,
    )  # fmt: skip


def test_the_parts_of_a_step_add_up_and_one_that_makes_it_shorter_is_below_zero(capsys) -> None:
    lines = shown(capsys).splitlines()
    header = lines.index("Where the time of a step goes") + 1
    assert "contention" in lines[header]
    assert "all else" in lines[header]
    for row in lines[header + 1 : header + 4]:
        parts = [float(part) for part in re.findall(r"[<>]?(-?[\d.]+)%", row)]
        assert sum(parts) == pytest.approx(100, abs=0.05 * len(parts) + 0.1), row
    assert re.search(r" -\d+(\.\d)?% ", lines[header + 2])


def test_what_costs_time_is_no_gain(capsys) -> None:
    gain = advice("trainer.commit_every=91", time_saved=0.008, device_hours_saved=0.008)
    fewer = advice("--workers 4", time_saved=-0.1, device_hours_saved=0.45)
    gains, _, longer = shown(capsys, gain, fewer).partition("What would take longer, and fewer device-hours")
    gains = gains[gains.index("What would gain on 8 workers") :]
    assert ("commit_every" in gains, "--workers 4" in gains) == (True, False)
    assert "+10.0%        -45.0%" in longer
    assert "Nothing that is known here would gain anything on 8 workers" in shown(capsys, fewer)


@pytest.mark.parametrize(
    ("every", "bytes_per_s", "worth"),
    [
        (25, 1e6, "yes: 1.45 times the rows of one cluster alone"),
        (1, 1e6, "no: 0.22 times the rows of one cluster alone"),
        (25, 1e12, "no: 0.84 times the rows of synchronous over the link"),
    ],
)
def test_clusters_are_shown_with_what_outer_steps_are_worth(capsys, every: int, bytes_per_s: float, worth: str) -> None:
    """Alone 1.523 s; (0.8 + 6.18 / 25) s and (0.8 + 6.18) s; 0.96 s, and 0.8 s with 8 MB of gradients at 1 GB/s."""
    link, calibration = (
        NetworkLink(bytes_per_s=bytes_per_s, latency_s=0.0),
        CALIBRATION.model_copy(update={"two_workers": two(1e9)}),
    )
    cluster = Cluster(8, None, NETWORK)
    found = forecast(calibration, [1], cluster)
    clusters = tuple(forecast_clusters(calibration, found.sizes, cluster, link, OuterConfig(every=every)))
    found = found.model_copy(update={"link": link, "clusters": clusters})
    print_document(forecast_document(found, calibration, advised_for=None))
    lines = capsys.readouterr().out.splitlines()
    assert worth in lines[-1]
    trainings = ("one cluster alone", "synchronous over the link", "outer steps")
    assert all(any(way in line and "[" in line for line in lines) for way in trainings)
