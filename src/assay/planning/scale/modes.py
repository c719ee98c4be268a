"""A forecast as the `modes` of an activity of a program: what `assay plan` chooses from."""

import math

import yaml

from assay.planning.program.work import RunMode, Runs
from assay.records.scale import ScaleForecast


def modes_of(forecast: ScaleForecast) -> Runs:
    """Numbers of workers with the hours that a run takes, those left out that are no faster than fewer."""
    modes: list[RunMode] = []
    for size in sorted(forecast.sizes, key=lambda each: each.world_size):
        hours = max(1, math.ceil(size.run_s.value / 3600))
        if not modes or hours < modes[-1].hours:
            modes.append(RunMode(devices=size.world_size, hours=hours))
    return Runs(modes=tuple(modes))


def modes_text(forecast: ScaleForecast) -> str:
    """To be put under `runs` of an activity."""
    found = [mode.model_dump() for mode in modes_of(forecast).modes]
    return yaml.safe_dump({"modes": found}, sort_keys=False, default_flow_style=None)
