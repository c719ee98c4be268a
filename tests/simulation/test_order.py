"""The loader under power cuts: a run that restarts on other ranks each time learns each row once.

One seed decides the dataset, the configuration, the cuts and the ranks; a failure prints the seed.
"""

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from assay.base.seeds import mix64
from assay.data.loader.config import BucketedLayout, LineLayout, LoaderConfig, PackedLayout, PaddedLayout
from assay.data.loader.loader import Loader
from assay.data.loader.order import lanes_of_reader
from assay.data.loader.receipts import NO_ROWS, explain, receipt
from assay.records.cursor import Cursor
from variants import slow

EPOCHS = 2
MAX_RESTARTS = 500


class MemorySource:
    """Rows with made-up lengths, no disk."""

    fingerprint = "0" * 64

    def __init__(self, rng: random.Random) -> None:
        sizes = [rng.choice([0, 1, 7, 20]) for _ in range(rng.randint(1, 12))]
        sizes[0] = sizes[0] or 1
        self._first = np.cumsum([0, *sizes])
        self.num_rows = np.array(sizes, np.int64)
        self.identities = mix64(np.arange(len(sizes), dtype=np.uint64))

    def row_ids(self, group):
        return np.arange(self._first[group], self._first[group + 1], dtype=np.uint64)

    def read(self, group, columns):
        rows = self.row_ids(group).tolist()
        return pa.table({"input_ids": pa.array([[1] * (1 + row * 7 % 11) for row in rows], pa.list_(pa.int32()))})

    def shard_of(self, group):
        return f"{group}.parquet"


def make_loader(rng):
    lanes = rng.choice([1, 2, 4, 8])
    layout = rng.choice(
        [
            PaddedLayout(),
            BucketedLayout(),
            PackedLayout(type="packed", sequence_tokens=16),
            LineLayout(type="line", tokens=16),
        ]
    )
    config = LoaderConfig(
        lanes=lanes,
        global_batch_size=lanes * rng.randint(1, 4),
        window_rows=rng.randint(1, 24),
        shuffle_radius_windows=rng.randint(0, 3),
        layout=layout,
        prefetch_steps=rng.choice([0, 3]),
        threads=1,
    )
    return Loader(MemorySource(rng), config, ())


def ranks_of(loader, cursor, num_ranks, num_steps):
    """What each rank's loader yields from the cursor on, the ranks in step."""
    lanes = [lanes_of_reader(rank, num_ranks, loader.config.lanes) for rank in range(num_ranks)]
    return [loader.shares(cursor, own, num_steps) for own in lanes]


def rows_of(share):
    return [row for lane in share.lanes for batch in lane.micro_batches for row in batch.row_ids.tolist()]


def simulate(seed, *, cursor_runs_ahead):
    """Rows that are in the weights in the end, restarting at the last commit whenever the power is cut.

    `cursor_runs_ahead` is the wrong program: it commits the place of what was prefetched, not of what was
    learned, as loaders with a state of their own do.
    """
    rng = random.Random(seed)
    loader = make_loader(rng)
    num_steps = EPOCHS * loader.steps_per_epoch
    committed_step, weights = 0, []
    for _ in range(MAX_RESTARTS):
        step, trained = committed_step, list(weights)
        ranks = ranks_of(loader, loader.cursor_at(step), rng.randint(1, 8), num_steps - step)
        for _ in range(rng.randint(1, 1 + num_steps // 3)):
            if step == num_steps:
                break
            trained += [row for rank in ranks for row in rows_of(next(rank))]
            step += 1
            if rng.random() < 0.4:
                in_flight = rng.randint(1, 3) if cursor_runs_ahead else 0
                committed_step, weights = min(num_steps, step + in_flight), list(trained)
                if cursor_runs_ahead:
                    break
        for rank in ranks:
            rank.close()
        if committed_step == num_steps or (step == num_steps and rng.random() < 0.5):
            return loader, trained if step == num_steps else weights
    raise AssertionError(f"seed {seed}: no progress in {MAX_RESTARTS} restarts")


def all_rows(loader):
    windows = [(lane, w) for lane in range(loader.config.lanes) for w in range(loader.geometry.num_windows)]
    return np.concatenate([loader.rows_of_window(0, lane, window) for lane, window in windows])


@pytest.mark.parametrize("seed", [*range(6), *slow(*range(6, 60))])
def test_each_row_is_learned_once_an_epoch_whatever_is_cut(seed):
    loader, trained = simulate(seed, cursor_runs_ahead=False)
    assert Counter(trained) == Counter(dict.fromkeys(all_rows(loader).tolist(), EPOCHS))


@pytest.mark.slow
def test_the_simulation_finds_the_rows_that_a_prefetched_cursor_loses():
    found = 0
    for seed in range(10):
        loader, trained = simulate(seed, cursor_runs_ahead=True)
        found += Counter(trained) != Counter(dict.fromkeys(all_rows(loader).tolist(), EPOCHS))
    assert found >= 5


@pytest.mark.parametrize("seed", range(20))
def test_receipts_tell_a_lost_and_a_repeated_row_by_name(seed):
    rng = random.Random(seed)
    loader = make_loader(rng)
    lane = rng.randrange(loader.config.lanes)
    rows = loader.rows_of_window(0, lane, 0)
    if not len(rows):
        return
    total = NO_ROWS
    steps = loader.geometry.steps_in_window(0)
    for share in loader.shares(Cursor(), range(lane, lane + 1), steps):
        total = total.plus(receipt(np.array(rows_of(share), np.uint64)))
    assert total == loader.expected_receipt(0, lane, 0)
    victim = rng.choice(rows.tolist())
    assert explain(rows, receipt(rows[rows != victim])).missing == (victim,)
    assert explain(rows, receipt(np.append(rows, np.uint64(victim)))).repeated == (victim,)
