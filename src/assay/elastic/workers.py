"""How many workers are asked for: a number, or as many as find room between two.

    --workers 8         8; on several nodes fewer while fewer find room
    --workers 8..64     as many as find room, at most 64; with fewer than 8 the run leaves, committed

A command reads it before it imports anything large: what knows of lanes is imported where it is needed.
"""

import re
from typing import NamedTuple, Self

from assay.base.errors import ConfigError
from assay.base.units import number_of

_WORKERS = re.compile(r"(\d+)(?:\.\.(\d+))?")


class Workers(NamedTuple):
    """How many will do."""

    most: int
    """All that are wanted;"""
    least: int | None = None
    """and the fewest with which the run goes on. None: just so many were asked for."""

    @classmethod
    def of(cls, text: str) -> Self:
        """As it stands on a command line."""
        if (found := _WORKERS.fullmatch(text)) is None:
            raise ConfigError(
                f"--workers {text}: expected a number, e.g. 8, or a range of which as many are taken as find "
                "room, e.g. 8..64."
            )
        if found[2] is None:
            return cls(int(found[1]))
        least, most = int(found[1]), int(found[2])
        if not 1 <= least < most:
            raise ConfigError(
                f"--workers {text}: a range goes from the fewest that will do, at least 1, to more, e.g. "
                f"{max(1, min(least, most))}..{max(least, most, 2)}."
            )
        return cls(most, least)

    def __str__(self) -> str:
        return str(self.most) if self.least is None else f"{self.least}..{self.most}"


def check_lanes(workers: Workers, num_lanes: int) -> str | None:
    """What to warn of: workers that gain nothing. `ConfigError` for more of them than lanes, and for a range of
    which none is faster than its fewest."""
    from assay.data.loader.lane_shares import LaneShares, next_useful_world_size, useful_world_size

    LaneShares(num_lanes, workers.most)
    if (useful := useful_world_size(num_lanes, workers.most)) == workers.most:
        return None
    more = next_useful_world_size(num_lanes, workers.most)
    count = number_of(-(-num_lanes // workers.most), "lane")
    reason = (
        f"--workers {workers}: of loader.lanes={num_lanes} the busiest of {workers.most} workers has {count}, "
        f"as of {useful}"
    )
    if workers.least is not None and useful <= workers.least:
        raise ConfigError(
            f"{reason}: more than {workers.least} gain nothing. Use --workers {workers.least}, or up to {more}."
        )
    return f"{reason}: more than {useful} gain nothing, {more} would"


def room_here(workers: Workers, *, num_lanes: int, threads: int, num_gpus: int, num_processors: int) -> int:
    """As many as a machine has GPUs, or processors for the threads of each; `ConfigError` where these are too
    few. A single number is taken as it is, if each worker has a GPU of its own: NCCL takes no two on one."""
    from assay.data.loader.lane_shares import useful_world_size

    if workers.least is None and not num_gpus:
        return workers.most
    least, room = workers.least or workers.most, num_gpus or max(1, num_processors // threads)
    if room < least:
        has, otherwise = (
            (number_of(num_gpus, "GPU"), "CUDA_VISIBLE_DEVICES= to train on processors")
            if num_gpus
            else (
                f"{number_of(num_processors, 'processor')} for {number_of(threads, 'thread')} a worker",
                f"--workers {least}, which then share it",
            )
        )
        raise ConfigError(
            f"--workers {workers}: this machine has room for {room}, with {has}. Use --workers {room}, or {otherwise}."
        )
    if workers.least is None:
        return workers.most
    return max(workers.least, useful_world_size(num_lanes, min(workers.most, room)))
