"""Writes a forecast as the `modes` of an activity's runs, for `assay plan`."""

import math
from collections.abc import Iterator

import yaml

from assay.base.units import duration_text
from assay.planning.program.work import RunMode, Runs
from assay.records.throughput import ThroughputForecast, WorldSizeForecast


def modes_of(forecast: ThroughputForecast) -> Runs:
    """Return numbers of workers with hours per run, without those that are no faster than fewer workers."""
    modes: list[RunMode] = []
    for size in _by_workers(forecast):
        hours = _hours(size)
        if not modes or hours < modes[-1].hours:
            modes.append(RunMode(devices=size.world_size, hours=hours))
    return Runs(modes=tuple(modes))


def modes_text(forecast: ThroughputForecast) -> str:
    """Return YAML for `runs` of an activity, with comments on rounding and on numbers of workers left out."""
    found = modes_of(forecast)
    modes = [mode.model_dump() for mode in found.modes]
    comments = "".join(f"# {line}\n" for line in _notes(forecast, {mode.devices for mode in found.modes}))
    return yaml.safe_dump({"modes": modes}, sort_keys=False, default_flow_style=None) + comments


def _notes(forecast: ThroughputForecast, listed: set[int]) -> Iterator[str]:
    sizes = _by_workers(forecast)
    took = ", ".join(f"{duration_text(size.run_s.value)} on {size.world_size:,}" for size in sizes)
    yield f"a run takes {took} workers; a program counts whole hours, so they are rounded up"
    for size in sizes:
        if size.world_size not in listed:
            fewer = max(devices for devices in listed if devices < size.world_size)
            yield f"left out: {size.world_size:,} workers, which take no fewer whole hours than {fewer:,}"


def _hours(size: WorldSizeForecast) -> int:
    """A program counts whole hours, at least one."""
    return max(1, math.ceil(size.run_s.value / 3600))


def _by_workers(forecast: ThroughputForecast) -> list[WorldSizeForecast]:
    return sorted(forecast.sizes, key=lambda size: size.world_size)
