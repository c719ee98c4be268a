"""How well the order mixes, against what it keeps in memory and reads: a table, by arithmetic.

    .venv/bin/python benchmarks/loader_mixing.py

Each row group is a kind of its own, the worst case. Given are: the variance of a step's mean over that under a
uniform shuffle; the memory of a lane, to be multiplied by the mean tokens of a row; the rows that a lane reads
for its first step; and how often a row group is read. `loader.py` measures its peers, from their batches. The
last line printed is one JSON object.
"""

import json
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa

from assay.base.seeds import mix64
from assay.data.loader.config import LoaderConfig
from assay.data.loader.loader import Loader
from assay.data.loader.order import WindowIndex
from harness import options_of

GROUP_ROWS, NUM_GROUPS = 1500, 700
CASES = [(4096, 0), (16_384, 0), (32_768, 0), (2048, 3), (4096, 1), (4096, 2), (4096, 3), (4096, 5), (8192, 3)]


class Groups:
    """Row groups of one size, whose rows nobody reads."""

    fingerprint = "0" * 64

    def __init__(self, group_rows: int, num_groups: int) -> None:
        self._group_rows = group_rows
        self.num_rows = np.full(num_groups, group_rows, np.int64)
        self.identities = mix64(np.arange(num_groups, dtype=np.uint64))

    def row_ids(self, group: int) -> np.ndarray:
        return np.arange(group * self._group_rows, (group + 1) * self._group_rows, dtype=np.uint64)

    def read(self, group: int, columns: Any) -> pa.Table:
        raise AssertionError("the order is told without reading")

    def shard_of(self, group: int) -> str:
        return str(group)


def variance_over_uniform(loader: Loader, group_rows: int) -> float:
    """Of a step's mean where each row group is a kind of its own, over that of a uniform shuffle of very many.

    Two rows of a lane's step are a pair of its window's rows, drawn at random; lanes have no group in common.
    """
    geometry, same = loader.geometry, []
    for window in range(geometry.num_whole):
        for lane in range(geometry.lanes):
            counts = np.unique(loader.rows_of_window(0, lane, window) // group_rows, return_counts=True)[1]
            same.append((counts * (counts - 1)).sum() / (counts.sum() * (counts.sum() - 1)))
    return 1 + (geometry.rows_per_lane - 1) * float(np.mean(same))


def figures(window_rows: int, shuffle_radius: int, *, lanes: int, batch: int) -> dict[str, float]:
    """Of one setting."""
    config = LoaderConfig(
        lanes=lanes, global_batch_size=batch, window_rows=window_rows, shuffle_radius_windows=shuffle_radius
    )
    loader = Loader(Groups(GROUP_ROWS, NUM_GROUPS), config, ())
    geometry = loader.geometry
    middle = geometry.slices_of_window(geometry.num_windows // 2)
    reads = Counter(
        group
        for lane in range(lanes)
        for group in {
            span.group
            for segment in range(geometry.num_windows)
            for span in loader.spans(WindowIndex(0, segment), lane)
        }
    )
    return {
        "window_rows": window_rows,
        "shuffle_radius_windows": shuffle_radius,
        "variance": round(variance_over_uniform(loader, GROUP_ROWS), 2),
        "kept_kb_per_token_of_a_row": round(config.buffer_bytes_per_token * window_rows / 1000, 1),
        "first_step_rows": len({segment for segment, _ in middle}) * window_rows,
        "reads": round(reads.total() / NUM_GROUPS, 3),
    }


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--batch", type=int, default=256)
    options = parser.parse_args()
    rows = [figures(*case, lanes=options.lanes, batch=options.batch) for case in CASES]
    print("".join(f"{name:>28}" for name in rows[0]))
    for row in rows:
        print("".join(f"{value:28,}" for value in row.values()))
    print(json.dumps({"curve": rows}))


if __name__ == "__main__":
    main()
