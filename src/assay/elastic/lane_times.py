"""How many lanes each rank of an attempt gets, from the lane times of earlier attempts.

    earlier attempts:  own work of a step / lanes of the rank  -->  seconds per lane, by rank slot  -->  loads

A rank slot is the k-th rank on a host: global rank numbers change with the world size, slots do not. A slot
without measurements is assumed to have the median of the others. Loads do not change any bit of the sum over lanes,
so a wrong measurement costs only time.
"""

import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal

from assay.base.errors import StoreError
from assay.data.loader.lane_shares import LaneShares, loads_by_speed
from assay.records.run import Attempt, Run
from assay.store.attempts import saved_attempts
from assay.store.metrics.phases import own_step_seconds
from assay.store.metrics.segment import read_segment, segment_path
from assay.training.recipe import recipe_of

Share = Literal["equal", "speed"]
"""Divide lanes evenly | in proportion to the speed of each rank."""

LEAST_STEPS = 5
"""Minimum steps of a rank for a measurement."""
NEWEST_STEPS = 200
"""Only this many of the newest steps are used, because speed changes over time."""
ATTEMPTS_BACK = 4
"""Number of attempts that are searched for the measurements of a slot."""


def loads_of(run: Run, share: Share, hosts: Sequence[str]) -> tuple[int, ...]:
    """Return the number of lanes of each rank for the next attempt on these hosts."""
    num_lanes = recipe_of(run).loader.lanes
    shares = LaneShares(num_lanes, len(hosts), nodes=_nodes(hosts))
    lane_s = measured_lane_s(run, hosts) if share == "speed" else None
    return shares.loads if lane_s is None else loads_by_speed(lane_s, num_lanes, shares.nodes)


def measured_lane_s(run: Run, hosts: Sequence[str]) -> list[float] | None:
    """Return each rank's seconds per lane when its slot was last measured; None if no slot was."""
    positions = _placement(hosts)
    known: dict[tuple[str, int], float] = {}
    for attempt in saved_attempts(Path(run.run_dir))[: -ATTEMPTS_BACK - 1 : -1]:
        if set(positions) <= known.keys():
            break
        for rank, position in enumerate(_placement(attempt.hosts)):
            if position in positions and position not in known and (seconds := _lane_s(run, attempt, rank)) is not None:
                known[position] = seconds
    if not known:
        return None
    usual = statistics.median(known.values())
    return [known.get(position, usual) for position in positions]


def _lane_s(run: Run, attempt: Attempt, rank: int) -> float | None:
    """Return a rank's median seconds per lane; None for too few steps, and for FSDP2, where all ranks wait."""
    path = segment_path(Path(run.run_dir), attempt.attempt, rank)
    if not attempt.loads or not path.is_file():
        return None
    try:
        own_s = own_step_seconds(read_segment(path))[-NEWEST_STEPS:].tolist()
    except StoreError:  # a damaged metrics file must not prevent training
        return None
    return statistics.median(own_s) / attempt.loads[rank] if len(own_s) >= LEAST_STEPS else None


def _placement(hosts: Sequence[str]) -> list[tuple[str, int]]:
    """Return the slot of each rank: its host, and its index among the ranks there."""
    seen = Counter[str]()
    positions = []
    for host in hosts:
        positions.append((host, seen[host]))
        seen[host] += 1
    return positions


def _nodes(hosts: Sequence[str]) -> tuple[int, ...]:
    """Return the number of ranks of each node; empty for a single node."""
    sizes = tuple(len(list(ranks)) for _, ranks in groupby(hosts))
    return sizes if len(sizes) > 1 else ()
