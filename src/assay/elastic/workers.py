"""The `--workers` option: a number, or a range.

    --workers 8         8; on several nodes, fewer while they have fewer slots
    --workers 8..64     as many as there are slots, at most 64; with fewer than 8 the run commits and exits

Commands parse it before any heavy import, so the lane modules are imported inside functions.
"""

import re
from typing import NamedTuple, Self

from assay.base.errors import ConfigError
from assay.base.units import number_of

_WORKERS = re.compile(r"(\d+)(?:\.\.(\d+))?")


class Workers(NamedTuple):
    """The requested number of workers."""

    most: int
    """Maximum number of workers."""
    least: int | None = None
    """Minimum number of workers; None if a single number was given."""

    @classmethod
    def of(cls, text: str) -> Self:
        """Parse the value of `--workers`; raises `ConfigError`."""
        if (found := _WORKERS.fullmatch(text)) is None:
            raise ConfigError(
                f"--workers {text}: expected a number, e.g. 8, or a range from the minimum to the maximum, e.g. 8..64."
            )
        if found[2] is None:
            return cls(int(found[1]))
        least, most = int(found[1]), int(found[2])
        if not 1 <= least < most:
            raise ConfigError(
                f"--workers {text}: the minimum of a range must be at least 1 and below the maximum, e.g. "
                f"{max(1, min(least, most))}..{max(least, most, 2)}."
            )
        return cls(most, least)

    def __str__(self) -> str:
        return str(self.most) if self.least is None else f"{self.least}..{self.most}"


def check_lanes(workers: Workers, num_lanes: int) -> str | None:
    """Return a warning if some workers bring no speedup, else None.

    Raises `ConfigError` for more workers than lanes, and for a range whose maximum is no faster than its minimum.
    """
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
            f"{reason}: more than {workers.least} bring no speedup. Use --workers {workers.least}, or up to {more}."
        )
    return f"{reason}: more than {useful} bring no speedup; {more} would"


def room_here(workers: Workers, *, num_lanes: int, threads: int, num_gpus: int, num_processors: int) -> int:
    """Return the number of workers for this machine: limited by its GPUs, or by its processors per thread count.

    Raises `ConfigError` if there are too few. On a machine without GPUs a single number is not limited; with GPUs
    each worker needs its own, because NCCL does not support two ranks on one GPU.
    """
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
                f"--workers {least} to let the workers share them",
            )
        )
        raise ConfigError(
            f"--workers {workers}: this machine has room for {room}, with {has}. Use --workers {room}, or {otherwise}."
        )
    if workers.least is None:
        return workers.most
    return max(workers.least, useful_world_size(num_lanes, min(workers.most, room)))
