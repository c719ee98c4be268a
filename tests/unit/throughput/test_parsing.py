"""What is said of a cluster on the command line."""

import pytest

from assay.base.errors import ConfigError
from assay.throughput.cluster import parse_failure_rate, parse_link, parse_world_sizes


@pytest.mark.parametrize(
    ("text", "bytes_per_s", "latency_s"),
    [
        ("25GB/s,5us", 25e9, 5e-6),
        ("100Gbit/s, 10µs", 12.5e9, 1e-5),
        ("100Mbit/s", 12.5e6, 0.0),
        ("1.5 GB/s,2ms", 1.5e9, 2e-3),
        ("3e8B/s,1s", 3e8, 1.0),
    ],
)
def test_a_link_is_read_with_its_units(text: str, bytes_per_s: float, latency_s: float) -> None:
    link = parse_link(text, option="--network")
    assert (link.bytes_per_s, link.latency_s) == (pytest.approx(bytes_per_s), pytest.approx(latency_s))


@pytest.mark.parametrize("text", ["25", "25GB", "fast,5us", "0GB/s", "25GB/s,5", "25GB/s,soon", "1..5GB/s"])
def test_what_is_no_link_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--network .*25GB/s,5us"):
        parse_link(text, option="--network")


def test_failures_are_of_a_node_in_an_hour() -> None:
    assert parse_failure_rate("0.02/h") == 0.02
    assert parse_failure_rate("0.48 / d") == pytest.approx(0.02)
    with pytest.raises(ConfigError, match=r"0\.02/h"):
        parse_failure_rate("2%")


def test_sizes_are_sorted_and_each_is_said_once() -> None:
    assert parse_world_sizes("32, 8,16,8") == [8, 16, 32]
    for text in ("", "8,,16", "0,8", "many"):
        with pytest.raises(ConfigError, match="8,16,32"):
            parse_world_sizes(text)
