"""How many lanes each rank of an attempt gets, and how long each place took for one by what is on record.

    last attempts:  own work of a step / lanes of the rank  -->  seconds a lane, by place  -->  loads

A place is the k-th rank on a machine: ranks are numbered anew when their number changes, machines are not. Of
a place that was never measured the median of the others is assumed. Whatever the loads are, no bit of the sum
over lanes changes, so a wrong measurement costs time and nothing else.
"""

import statistics
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Literal, NamedTuple

from assay.base.errors import StoreError
from assay.data.loader.lane_shares import LaneShares, loads_by_speed
from assay.records.run import Attempt, Run
from assay.store.attempts import saved_attempts
from assay.store.metrics.phases import own_step_seconds
from assay.store.metrics.segment import read_segment, segment_path
from assay.training.recipe import recipe_of

Share = Literal["equal", "speed"]
"""The rank with the most lanes has as few as may be | as many as it is fast."""

LEAST_STEPS = 5
"""Fewer say little about a rank."""
NEWEST_STEPS = 200
"""What was long ago says little about now."""
ATTEMPTS_BACK = 4
"""That are looked through for places that later ones do not know."""


class _LogPosition(NamedTuple):
    """Where a rank is."""

    host: str
    number: int
    """Among the ranks of that machine, from 0."""


def loads_of(run: Run, share: Share, hosts: Sequence[str]) -> tuple[int, ...]:
    """[rank]: the lanes of the ranks of an attempt that is to begin on these machines."""
    num_lanes = recipe_of(run).loader.lanes
    shares = LaneShares(num_lanes, len(hosts), nodes=_nodes(hosts))
    lane_s = measured_lane_s(run, hosts) if share == "speed" else None
    return shares.loads if lane_s is None else loads_by_speed(lane_s, num_lanes, shares.nodes)


def measured_lane_s(run: Run, hosts: Sequence[str]) -> list[float] | None:
    """[rank]: seconds that its place took for a lane when it was last measured; None where none was."""
    positions = _placement(hosts)
    known: dict[_LogPosition, float] = {}
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
    """None where too little is on record, and of sharded weights, for whose lanes all ranks wait."""
    path = segment_path(Path(run.run_dir), attempt.attempt, rank)
    if not attempt.loads or not path.is_file():
        return None
    try:
        own_s = own_step_seconds(read_segment(path))[-NEWEST_STEPS:].tolist()
    except StoreError:  # an account stops nobody
        return None
    return statistics.median(own_s) / attempt.loads[rank] if len(own_s) >= LEAST_STEPS else None


def _placement(hosts: Sequence[str]) -> list[_LogPosition]:
    seen = Counter[str]()
    positions = []
    for host in hosts:
        positions.append(_LogPosition(host, seen[host]))
        seen[host] += 1
    return positions


def _nodes(hosts: Sequence[str]) -> tuple[int, ...]:
    """Ranks of each node; nothing where all are on one."""
    sizes = tuple(len(list(ranks)) for _, ranks in groupby(hosts))
    return sizes if len(sizes) > 1 else ()
