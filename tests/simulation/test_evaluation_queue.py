"""The queue on a store that loses power after every possible number of writes."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from assay.evals.queue import Checkpoint, evaluate, held_seconds, is_done, mark_done, stored_results
from assay.evals.scorer import Identity
from assay.records.benchmark import BenchmarkResult
from assay.statistics.benchmark_items import ItemScore
from assay.store.leases import holding, take_lease
from assay.store.objects import ObjectStore, open_store
from power_cut_store import PowerCut, PowerCutStore

NUM_ITEMS, CHUNK = 23, 4
CHECKPOINT = Checkpoint("run", "baseline", 0, 400, "abcdef0123456789")


class TickingClock:
    """Every look at it takes a second."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now_s(self) -> float:
        self.at_s += 1
        return self.at_s

    monotonic_s = now_s

    def sleep_s(self, seconds: float) -> None:
        self.at_s += seconds


class CountingScorer:
    """Remembers how often each item was scored."""

    num_chunks = -(-NUM_ITEMS // CHUNK)
    training_fingerprint = None

    def __init__(self, name: str, scored: Counter[str]) -> None:
        self.identity = Identity(name, "b", "g", "p")
        self._scored = scored

    def score_chunk(self, chunk: int) -> list[ItemScore]:
        items = [f"{k:03d}" for k in range(chunk * CHUNK, min(NUM_ITEMS, (chunk + 1) * CHUNK))]
        self._scored.update(f"{self.identity.benchmark}/{item}" for item in items)
        return [ItemScore(item, item, float(int(item) % 2)) for item in items]

    def contamination(self, items: Sequence[ItemScore]) -> None:
        return None

    def of_score(self, score: float) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass


def one_life(store: ObjectStore, clock: TickingClock, scored: Counter[str]) -> list[BenchmarkResult]:
    """What a worker does with one checkpoint."""
    lease = take_lease(store, CHECKPOINT.folder, worker="w", clock=clock)
    assert lease is not None, "the dead one's lease has run out"
    with holding(lease, beat_s=60):
        scorers = [CountingScorer(name, scored) for name in ("sums", "facts")]
        results = [evaluate(store, CHECKPOINT, scorer, lease, clock=clock) for scorer in scorers]
        mark_done(store, CHECKPOINT, "suite", results)
    return results


def undisturbed() -> list[BenchmarkResult]:
    return one_life(open_store("memory:"), TickingClock(), Counter())


@pytest.mark.parametrize("num_writes", range(22))
def test_wherever_a_worker_dies_each_item_is_recorded_once_with_the_same_score(num_writes: int):
    rng, store, clock = random.Random(num_writes), open_store("memory:"), TickingClock()
    scored: Counter[str] = Counter()
    lives = 0
    while not is_done(store, CHECKPOINT.step, CHECKPOINT.weights_digest, "suite"):
        lives += 1
        try:
            one_life(
                PowerCutStore(store, writes_left=num_writes if lives == 1 else 3 + lives, rng=rng),
                clock,
                scored,
            )
        except PowerCut:
            clock.at_s += 100
        assert lives < 60
    results = [result for _, result in stored_results(store)]
    expected = sorted(undisturbed(), key=lambda result: result.benchmark)
    assert [result.items_sha256 for result in results] == [result.items_sha256 for result in expected]
    assert [result.num_items for result in results] == [NUM_ITEMS, NUM_ITEMS]
    assert len(scored) == 2 * NUM_ITEMS
    repeated = sum(scored.values()) - 2 * NUM_ITEMS
    assert repeated <= lives * CHUNK
    assert held_seconds(store) > 0


def test_a_second_evaluation_of_the_same_scores_nothing():
    store, clock = open_store("memory:"), TickingClock()
    first, second = Counter(), Counter()
    before = one_life(store, clock, first)
    assert one_life(store, clock, second) == before
    assert sum(first.values()) == 2 * NUM_ITEMS
    assert not second


def test_two_workers_at_once_still_record_each_item_once():
    """A slow worker's lease runs out in its midst; the chunks are those of whoever was first."""
    from assay.base.errors import FencedError

    store, clock, scored = open_store("memory:"), TickingClock(), Counter()

    class SlowScorer(CountingScorer):
        def score_chunk(self, chunk: int) -> list[ItemScore]:
            items = super().score_chunk(chunk)
            if chunk == 2:
                clock.at_s += 1000
                one_life(store, clock, scored)
            return items

    lease = take_lease(store, CHECKPOINT.folder, worker="slow", clock=clock)
    with pytest.raises(FencedError):
        evaluate(store, CHECKPOINT, SlowScorer("sums", scored), lease, clock=clock)
    assert [result.num_items for _, result in stored_results(store)] == [NUM_ITEMS, NUM_ITEMS]
    assert sum(scored.values()) == 2 * NUM_ITEMS + CHUNK
