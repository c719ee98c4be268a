"""Evaluate checkpoints in chunks, so that a dead worker loses one chunk and nothing is counted twice.

The queue is computed, not stored: the pending work is the chunks of the suite's benchmarks at the commits that the
recipe selects, without those in the store.

    benchmarks/00000400-5f21c09a/                 a checkpoint: its step, its weights
      lease-0001.json                             the worker that evaluates it
      sums-91ab03de/chunk-00000.parquet           put if absent: the scores of some items
      sums-91ab03de/items.parquet, result.json    once all chunks are there; the result last
      requested-7b2e6d10.json                     somebody asks for results of that suite beyond the recipe's
      done-7b2e6d10.json                          every benchmark of that suite has its result

If a slow worker's lease expires and another takes over, both put equal chunks, and the first counts.
"""

import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from assay.base.clock import Clock
from assay.base.digest import canonical_json, sha256_of_bytes, sha256_of_json
from assay.base.errors import DataError, FencedError
from assay.evals.items import suite_sha256
from assay.evals.scorer import Identity, Scorer, mean_details, num_prompts_cut
from assay.records.benchmark import BenchmarkResult, Contamination
from assay.records.commit import Commit
from assay.statistics.benchmark_items import (
    ITEMS_FILE,
    RESULT_FILE,
    ItemScore,
    items_bytes,
    items_of,
    items_table,
    summarise,
)
from assay.store.leases import Lease, leases
from assay.store.objects import ObjectStore
from assay.training.recipe import EvaluationConfig

PREFIX = "benchmarks/"
_DEVICE_S = b"device_s"


class Checkpoint(NamedTuple):
    """The weights that are evaluated, and the run that they belong to."""

    run_id: str
    candidate: str
    seed: int
    step: int
    weights_digest: str

    @property
    def folder(self) -> str:
        """Folder of its results in the store."""
        return checkpoint_results(self.step, self.weights_digest)


OnChunk = Callable[[str, int, int], None]
"""Called after each chunk with the benchmark's name, the number of finished chunks and their total."""


def checkpoint_results(step: int, weights_digest: str) -> str:
    """Return the folder of a checkpoint's results."""
    return f"{PREFIX}{step:08d}-{weights_digest[:8]}"


def benchmark_folder(checkpoint: Checkpoint, identity: Identity) -> str:
    """Return the folder of one result; each version of a benchmark has its own."""
    return f"{checkpoint.folder}/{identity.benchmark}-{sha256_of_json(list(identity))[:8]}"


def evaluate(
    store: ObjectStore,
    checkpoint: Checkpoint,
    scorer: Scorer,
    lease: Lease,
    *,
    clock: Clock,
    on_chunk: OnChunk = lambda name, done, all_chunks: None,
) -> BenchmarkResult:
    """Score the missing chunks, and return the new or stored result. Raises `FencedError` if another worker took
    over; chunks that were put stay."""
    folder = benchmark_folder(checkpoint, scorer.identity)
    if (known := stored_result(store, folder)) is not None:
        return _with_contamination(store, known, scorer, folder)
    done = {item.key for item in store.list(f"{folder}/chunk-")}
    for chunk in range(scorer.num_chunks):
        key = f"{folder}/chunk-{chunk:05d}.parquet"
        if key not in done:
            if not lease.is_newest():
                raise FencedError(f"{folder} was taken over by another worker.")
            began_s = clock.monotonic_s()
            items = scorer.score_chunk(chunk)
            store.put_if_absent(key, _chunk_bytes(items, clock.monotonic_s() - began_s))
            lease.beat()
            done.add(key)
        on_chunk(scorer.identity.benchmark, len(done), scorer.num_chunks)
    return _finish(store, checkpoint, scorer, folder, clock)


def mark_done(
    store: ObjectStore, checkpoint: Checkpoint, suite_sha256: str, results: Iterable[BenchmarkResult]
) -> None:
    """Record that a checkpoint has all results of a suite, so its commit may be retired."""
    named = {result.benchmark: result.digest() for result in results}
    key = _done_key(checkpoint.step, checkpoint.weights_digest, suite_sha256)
    store.put_if_absent(key, canonical_json(named).encode())


def mark_failed(store: ObjectStore, checkpoint: Checkpoint, suite_sha256: str, reason: str) -> None:
    """Record that a checkpoint cannot be evaluated, and why."""
    key = _done_key(checkpoint.step, checkpoint.weights_digest, suite_sha256)
    store.put_if_absent(key, canonical_json({"failure": reason}).encode())


def request(store: ObjectStore, step: int, weights_digest: str, suite_sha256: str) -> None:
    """Ask the workers of a run to evaluate a checkpoint on a suite, whether the recipe selects it or not."""
    store.put_if_absent(_requested_key(step, weights_digest, suite_sha256), b"{}\n")


def is_requested(store: ObjectStore, step: int, weights_digest: str, suite_sha256: str) -> bool:
    """Return whether somebody asked for a checkpoint's results of a suite."""
    return store.exists(_requested_key(step, weights_digest, suite_sha256))


def is_done(store: ObjectStore, step: int, weights_digest: str, suite_sha256: str) -> bool:
    """Return whether a checkpoint has all results of a suite, or cannot be evaluated."""
    return store.exists(_done_key(step, weights_digest, suite_sha256))


def stored_result(store: ObjectStore, folder: str) -> BenchmarkResult | None:
    """Return the result in a folder of the store; None if there is none."""
    key = f"{folder}/{RESULT_FILE}"
    return BenchmarkResult.from_json(store.get(key), source=key) if store.exists(key) else None


def stored_results(store: ObjectStore) -> list[tuple[str, BenchmarkResult]]:
    """Return all results of a run with their folders, by step and benchmark."""
    keys = [item.key for item in store.list(PREFIX) if item.key.endswith("/" + RESULT_FILE)]
    found = [
        (key.removesuffix("/" + RESULT_FILE), BenchmarkResult.from_json(store.get(key), source=key)) for key in keys
    ]
    return sorted(found, key=lambda pair: (pair[1].step, pair[1].benchmark, pair[0]))


def held_seconds(store: ObjectStore, *, over_by_s: float | None = None) -> float:
    """Return the device time that evaluation held for a run, over all leases; a killed worker's ends at its last
    heartbeat.

    With `over_by_s` (seconds since the epoch), leases that were still active then are left out.
    """
    folders = {item.key.rpartition("/")[0] for item in store.list(PREFIX) if "/lease-" in item.key}
    by_folder = [leases(store, folder) for folder in sorted(folders)]
    held = [(state, state is states[-1]) for states in by_folder for state in states]
    return sum(
        state.held_s
        for state, is_newest in held
        if over_by_s is None or not is_newest or state.is_released or over_by_s - state.beat_s > state.term_s
    )


def result_of(
    checkpoint: Checkpoint,
    identity: Identity,
    items: Sequence[ItemScore],
    evaluated_s: float,
    *,
    contamination: Contamination | None = None,
    device_s: float = 0.0,
    source: str = "assay",
    incomplete_reason: str = "",
    of_score: Callable[[float], dict[str, float]] = lambda _: {},
) -> BenchmarkResult:
    """Return the record of all items of a benchmark; `of_score` adds metrics derived from the total score."""
    table = items_table(items)
    summary = summarise(table, identity.unit)
    reasons = [item.finish_reason for item in items if item.score is not None and item.finish_reason]
    return BenchmarkResult(
        **checkpoint._asdict(),
        **identity._asdict(),
        num_items=len(items),
        num_failed=summary.num_failed,
        failures=count_failures(items),
        incomplete_reason=incomplete_reason,
        num_prompts_cut=num_prompts_cut(items) if source == "assay" else None,
        num_completions_cut=reasons.count("length") if reasons else None,
        score=summary.score,
        could_detect=None if incomplete_reason else summary.could_detect,
        metrics=mean_details(items) | of_score(summary.score.value),
        contamination=contamination,
        device_s=device_s,
        evaluated_s=evaluated_s,
        source=source,
        items_sha256=sha256_of_bytes(items_bytes(table)),
    )


def _finish(store: ObjectStore, checkpoint: Checkpoint, scorer: Scorer, folder: str, clock: Clock) -> BenchmarkResult:
    """Join the chunks in the store, whichever worker put them."""
    chunks = [_read_chunk(store, f"{folder}/chunk-{chunk:05d}.parquet") for chunk in range(scorer.num_chunks)]
    items = [item for chunk, _ in chunks for item in chunk]
    if not items:
        raise DataError(f"benchmark '{scorer.identity.benchmark}' has no items. Choose `where` values that occur.")
    result = result_of(
        checkpoint,
        scorer.identity,
        items,
        clock.now_s(),
        contamination=scorer.contamination(items),
        device_s=sum(device_s for _, device_s in chunks),
        of_score=scorer.of_score,
    )
    store.put(f"{folder}/{ITEMS_FILE}", items_bytes(items_table(items)))
    key = f"{folder}/{RESULT_FILE}"
    if not store.put_if_absent(key, (result.to_json() + "\n").encode()):
        return BenchmarkResult.from_json(store.get(key), source=key)
    return result


def _with_contamination(store: ObjectStore, known: BenchmarkResult, scorer: Scorer, folder: str) -> BenchmarkResult:
    """Return the stored result; search for contamination again if other training data is given."""
    searched = known.contamination.dataset_fingerprint if known.contamination is not None else None
    if scorer.training_fingerprint in (None, searched):
        return known
    items = items_of(pq.ParquetFile(io.BytesIO(store.get(f"{folder}/{ITEMS_FILE}"))).read())
    result = known.model_copy(update={"contamination": scorer.contamination(items)})
    store.put(f"{folder}/{RESULT_FILE}", (result.to_json() + "\n").encode())
    return result


def count_failures(items: Sequence[ItemScore]) -> dict[str, int]:
    """Count failed items by kind."""
    return dict(Counter(item.failure.kind for item in items if item.failure is not None))


def _requested_key(step: int, weights_digest: str, suite_sha256: str) -> str:
    return f"{checkpoint_results(step, weights_digest)}/requested-{suite_sha256[:8]}.json"


def _done_key(step: int, weights_digest: str, suite_sha256: str) -> str:
    return f"{checkpoint_results(step, weights_digest)}/done-{suite_sha256[:8]}.json"


def _chunk_bytes(items: Sequence[ItemScore], device_s: float) -> bytes:
    table = items_table(items).replace_schema_metadata({_DEVICE_S: repr(device_s).encode()})
    return items_bytes(table)


def _read_chunk(store: ObjectStore, key: str) -> tuple[list[ItemScore], float]:
    """Return the items of a chunk and its device-seconds."""
    table = pq.ParquetFile(io.BytesIO(store.get(key))).read()
    device_s = float((table.schema.metadata or {}).get(_DEVICE_S, b"0"))
    return items_of(table), device_s


def awaited_folders(commits: Sequence[Commit], config: EvaluationConfig, store: ObjectStore) -> list[str]:
    """Return the checkpoint folders to retain for pending evaluations: the newest `config.max_waiting` ones."""
    requested = [commit for commit in commits if config.is_evaluated(commit.step)]
    pending = not_evaluated(requested, suite_sha256(Path(config.suite)), store)
    return [commit.folder for commit in pending][-config.max_waiting :]


def not_evaluated(commits: Sequence[Commit], sha256: str, store: ObjectStore) -> list[Commit]:
    """Return the commits without a complete result of the suite whose contents have this SHA-256."""
    return [commit for commit in commits if not is_done(store, commit.step, commit.weights_digest, sha256)]
