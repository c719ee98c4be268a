"""What is made of a range of workers: whether it gains anything, and how many a machine has room for."""

from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.base.workers import Workers
from assay.data.loader.lane_shares import LaneShares, next_useful_world_size, useful_world_size


def check_lanes(workers: Workers, num_lanes: int) -> str | None:
    """What to warn of: workers that gain nothing. `ConfigError` for more of them than lanes, and for a range of
    which none is faster than its fewest."""
    LaneShares(num_lanes, workers.most)
    if (useful := useful_world_size(num_lanes, workers.most)) == workers.most:
        return None
    more = next_useful_world_size(num_lanes, workers.most)
    each = number_of(-(-num_lanes // workers.most), "lane")
    said = (
        f"--workers {workers}: of loader.lanes={num_lanes} the busiest of {workers.most} workers has {each}, "
        f"as of {useful}"
    )
    if workers.least is not None and useful <= workers.least:
        raise ConfigError(
            f"{said}: more than {workers.least} gain nothing. Use --workers {workers.least}, or up to {more}."
        )
    return f"{said}: more than {useful} gain nothing, {more} would"


def room_here(workers: Workers, *, num_lanes: int, threads: int, num_gpus: int, num_processors: int) -> int:
    """As many as a machine has GPUs, or processors for the threads of each; `ConfigError` where these are too
    few. A single number is taken as it is."""
    if workers.least is None:
        return workers.most
    room = num_gpus or max(1, num_processors // threads)
    if room < workers.least:
        has = (
            number_of(num_gpus, "GPU")
            if num_gpus
            else f"{number_of(num_processors, 'processor')} for {number_of(threads, 'thread')} a worker"
        )
        raise ConfigError(
            f"--workers {workers}: this machine has room for {room}, with {has}. Use --workers {room}, or "
            f"--workers {workers.least}, which then share it."
        )
    return max(workers.least, useful_world_size(num_lanes, min(workers.most, room)))
