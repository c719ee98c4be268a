"""Parses a cluster's description on the command line: `25GB/s,5us` is a network, `0.02/h` a failure rate."""

import re

from assay.base.errors import ConfigError
from assay.records.throughput import NetworkLink

_RATE = re.compile(r"([\d.]+(?:e[+-]?\d+)?)\s*([kMGT]?)(B|bit)/s")
_TIME = re.compile(r"([\d.]+(?:e[+-]?\d+)?)\s*(ns|us|µs|ms|s)")
_FAILURES = re.compile(r"([\d.]+(?:e[+-]?\d+)?)\s*/\s*(h|d)")
_SCALE = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
HOURS = {"h": 1.0, "d": 24.0}


def parse_link(text: str, *, option: str) -> NetworkLink:
    """Parse `25GB/s,5us`: bytes or bits per second in each direction, and seconds per message."""
    rate, _, time = (part.strip() for part in text.partition(","))
    found, latency = _RATE.fullmatch(rate), _TIME.fullmatch(time) if time else None
    bytes_per_s = _number(found[1]) * _SCALE[found[2]] / (8 if found[3] == "bit" else 1) if found else 0.0
    if not bytes_per_s or (time and latency is None):
        raise ConfigError(
            f"{option} {text}: expected bandwidth and latency, e.g. 25GB/s,5us or 100Gbit/s,10us: what one "
            "node sends (and receives at the same time), and the latency of a message."
        )
    latency_s = _number(latency[1]) * _SECONDS[latency[2]] if latency else 0.0
    return NetworkLink(bytes_per_s=bytes_per_s, latency_s=latency_s)


def parse_failure_rate(text: str) -> float:
    """Parse `0.02/h`, the failures of one node per hour."""
    found = _FAILURES.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"--failures {text}: expected failures of a node in an hour or a day, e.g. 0.02/h or 0.1/d.")
    return _number(found[1]) / HOURS[found[2]]


def parse_world_sizes(text: str) -> list[int]:
    """Parse `8,16,32` and return the numbers in ascending order."""
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < 1:
        raise ConfigError(f"--workers {text}: expected numbers of workers, e.g. 8,16,32.")
    return sizes


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
