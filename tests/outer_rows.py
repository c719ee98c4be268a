"""A loader of small row groups, and the rows of its lanes."""

import numpy as np
import pyarrow as pa

from assay.base.seeds import mix64
from assay.data.loader.batch import LaneShare
from assay.data.loader.config import LoaderConfig
from assay.data.loader.loader import Loader

SIZES = [31, 1, 60, 40, 25]
BORDERS = np.cumsum([0, *SIZES])


class Rows:
    """Row groups of given sizes."""

    fingerprint = "f" * 64
    num_rows = np.array(SIZES, np.int64)
    identities = mix64(np.arange(len(SIZES), dtype=np.uint64))

    def row_ids(self, group: int) -> np.ndarray:
        return np.arange(BORDERS[group], BORDERS[group + 1], dtype=np.uint64)

    def read(self, group: int, columns: list[str]) -> pa.Table:
        return pa.table({"input_ids": pa.array([[1, 2]] * SIZES[group], pa.list_(pa.int32()))}).select(list(columns))

    def shard_of(self, group: int) -> str:
        return f"shard-{group}"


LOADER = Loader(
    Rows(),  # type: ignore[arg-type]
    LoaderConfig(lanes=4, global_batch_size=12, window_rows=6, prefetch_steps=0, threads=1),
    ("input_ids",),
)
LANE_STEPS = 2 * LOADER.steps_per_epoch + 3


def row_ids(share: LaneShare) -> list[int]:
    return [int(row) for batch in share.micro_batches for row in batch.row_ids]


def rows_of_lane(lane: int) -> list[list[int]]:
    """Return all rows of a lane, step by step, as the loader has them."""
    return [row_ids(step.lanes[0]) for step in LOADER.shares(LOADER.cursor_at(0), [lane], LANE_STEPS)]
