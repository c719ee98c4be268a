"""The real loader's order, receipts and commit log in one thread, on a store that loses power.

One seed decides the cuts and the world sizes; a failure prints the seed, and the seed is the reproduction. The
"weights" are the list of rows that they were made from, so a row that is lost or learned twice shows.
"""

import json
import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from assay.base.digest import sha256_of_bytes
from assay.base.seeds import mix64
from assay.data.loader.config import LoaderConfig
from assay.data.loader.loader import Loader
from assay.data.loader.receipts import receipt
from assay.records.commit import Commit, FileDigest, RunFinished
from assay.records.cursor import Cursor
from assay.store.commit_log import CommitLog, checkpoint_folder
from assay.store.objects import ObjectStore, open_store
from power_cut_store import PowerCut, PowerCutStore

NUM_ROWS = 157
MAX_RESTARTS = 400
COMMIT_EVERY = 2


class ArraySource:
    """Row groups of given sizes; each row has two tokens."""

    fingerprint = "f" * 64

    def __init__(self, sizes: list[int]) -> None:
        self.num_rows = np.array(sizes, np.int64)
        self.identities = mix64(np.arange(len(sizes), dtype=np.uint64))
        self._borders = np.cumsum([0, *sizes])

    def row_ids(self, group):
        return np.arange(self._borders[group], self._borders[group + 1], dtype=np.uint64)

    def read(self, group, columns):
        rows = self.row_ids(group)
        return pa.table({"input_ids": pa.array([[1, 2]] * len(rows), pa.list_(pa.int32()))})

    def shard_of(self, group):
        return f"shard-{group}"


def loader() -> Loader:
    source = ArraySource([31, 1, 60, 40, 25])
    config = LoaderConfig(lanes=4, global_batch_size=12, window_rows=6, prefetch_steps=0, threads=1)
    return Loader(source, config, ("input_ids",))


class Trainee:
    """Trains by remembering; one attempt of a run."""

    def __init__(self, store: ObjectStore, world_size: int) -> None:
        self.loader = loader()
        self.store = store
        self.world_size = world_size
        self.log = CommitLog(store)
        self.log.begin_attempt(world_size=world_size, now_s=0.0)
        self.step, self.cursor, self.weights = 0, Cursor(), []
        if (commit := self.log.last_intact_commit()) is not None:
            self.restore(commit)

    def restore(self, commit: Commit) -> None:
        self.step, self.cursor = commit.step, commit.cursor
        self.weights = json.loads(self.store.get(f"{commit.folder}/weights"))

    def train(self) -> None:
        committed, learned = self.step, []
        num_steps = self.loader.steps_per_epoch
        per_rank = self.loader.config.lanes // self.world_size
        for _ in range(self.step, num_steps):
            for rank in range(self.world_size):
                lanes = range(rank * per_rank, (rank + 1) * per_rank)
                for lane in next(iter(self.loader.shares(self.cursor, lanes, 1))).lanes:
                    learned += [int(row) for batch in lane.micro_batches for row in batch.row_ids]
            self.step, self.cursor = self.step + 1, self.loader.next_cursor(self.cursor)
            if self.step % COMMIT_EVERY == 0 or self.step == num_steps:
                self.weights += learned
                self.commit(committed, learned)
                committed, learned = self.step, []
        last = self.log.commits()[-1]
        self.log.append(
            RunFinished(attempt=self.log.attempt, step=last.step, weights_digest=last.weights_digest)
        )

    def commit(self, from_step: int, learned: list[int]) -> None:
        folder = checkpoint_folder(self.step, self.log.attempt)
        data = json.dumps(self.weights).encode()
        self.store.put(f"{folder}/weights", data)
        self.log.append(
            Commit(
                attempt=self.log.attempt,
                world_size=self.world_size,
                step=self.step,
                cursor=self.cursor,
                committed_s=0.0,
                folder=folder,
                files=(FileDigest(path="weights", num_bytes=len(data), sha256=sha256_of_bytes(data)),),
                weights_digest=str(receipt(np.array(self.weights, np.uint64)).digest),
                receipts_from_step=from_step,
                rows_learned=len(learned),
            )
        )
        self.log.sweep()


class CursorApart(Trainee):
    """Wrong on purpose: the cursor is saved by itself, before the weights."""

    def commit(self, from_step: int, learned: list[int]) -> None:
        self.store.put("cursor", json.dumps([self.step, self.cursor.model_dump()]).encode())
        super().commit(from_step, learned)

    def restore(self, commit: Commit) -> None:
        super().restore(commit)
        self.step, cursor = json.loads(self.store.get("cursor"))
        self.cursor = Cursor(**cursor)


def simulate(trainee: type[Trainee], seed: int) -> list[int]:
    """Restart until done, on other ranks each time, cutting the power after a few writes; the rows learned."""
    rng = random.Random(seed)
    store = open_store("memory:")
    for _ in range(MAX_RESTARTS):
        faulty = PowerCutStore(store, writes_left=rng.randrange(1, 12), rng=rng)
        try:
            trainee(faulty, world_size=rng.choice([1, 2, 4])).train()
        except PowerCut:
            continue
        log = CommitLog(store)
        assert log.finished() is not None
        return json.loads(store.get(f"{log.commits()[-1].folder}/weights"))
    raise AssertionError(f"seed {seed}: no end in {MAX_RESTARTS} restarts")


@pytest.mark.parametrize("seed", range(100))
def test_each_row_is_learned_once_wherever_the_power_is_cut(seed: int) -> None:
    assert sorted(simulate(Trainee, seed)) == list(range(NUM_ROWS))


def test_the_simulation_finds_the_program_that_commits_its_cursor_apart() -> None:
    wrong = []
    for seed in range(60):
        try:
            rows = Counter(simulate(CursorApart, seed))
        except (ValueError, TypeError):  # the torn cursor could not even be read
            wrong.append(seed)
            continue
        if rows != Counter(range(NUM_ROWS)):
            wrong.append(seed)
    assert len(wrong) > 10
