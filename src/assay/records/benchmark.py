"""What a checkpoint scored on a benchmark: the header of a file with one line per item.

    result folder
        items.parquet    item_id, cluster, score, weight, failure, answer, details; sorted by item_id
        result.json      BenchmarkResult, which names the file by its digest

Items, prompts and grader are named by digests, so that two results are compared only where they were made of
the same questions, asked in the same words, and judged by the same rule.
"""

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.base.digest import sha256_of_json
from assay.records.evaluation import Estimate
from assay.records.record import Record


class DetectableEffect(Record):
    """The power of a paired comparison on these items."""

    effect: NonNegativeFloat
    """Smallest difference found with `power`."""
    power: float = 0.8
    confidence: float = 0.95
    correlation: float = 0.0
    """Between two checkpoints' item scores."""


class Contamination(Record):
    """Overlap of a benchmark with the training data."""

    dataset_fingerprint: str
    unit: str
    """What n-grams consist of."""
    ngram: PositiveInt
    num_ngrams: NonNegativeInt
    """In the benchmark; 0 if it is too short to search."""
    num_found: NonNegativeInt
    """Those in the training data."""
    num_items: NonNegativeInt
    num_items_searched: NonNegativeInt
    """Items long enough for an n-gram."""
    items_found: tuple[str, ...] = ()
    """Up to 100 items with at least `item_threshold` of their n-grams found."""
    num_items_found: NonNegativeInt = 0
    item_threshold: float = 0.5
    score_without: float | None = None
    """Score without those items."""

    @property
    def overlap(self) -> float | None:
        """Share of the benchmark's n-grams that the training data holds; None where it has none."""
        return self.num_found / self.num_ngrams if self.num_ngrams else None


class BenchmarkResult(Record):
    """A checkpoint's result on a benchmark."""

    run_id: str
    """Empty for an external checkpoint."""
    candidate: str
    """Recipe name, shared by all seeds."""
    seed: NonNegativeInt = 0
    """Seed of the training run."""
    step: NonNegativeInt
    weights_digest: str
    benchmark: str
    benchmark_sha256: str
    """SHA-256 of the definition with its items."""
    grader_sha256: str
    """SHA-256 of the grading rule."""
    prompt_sha256: str
    """SHA-256 of all prompts and the sampling settings."""
    num_items: PositiveInt
    num_failed: NonNegativeInt
    """Items without a score, due to infrastructure."""
    failures: dict[str, int] = Field(default_factory=dict)
    """Items by kind of failure."""
    incomplete_reason: str = ""
    """Why items are missing; such a result is not compared."""
    num_prompts_cut: NonNegativeInt | None = None
    """Prompts truncated to the context length."""
    num_completions_cut: NonNegativeInt | None = None
    """Completions cut at `max_tokens`."""
    score: Estimate
    """Weighted mean; the interval is clustered."""
    higher_is_better: bool = True
    unit: str = "share"
    """E.g. `share`, `bits per byte`."""
    could_detect: DetectableEffect | None
    metrics: dict[str, float] = Field(default_factory=dict)
    contamination: Contamination | None = None
    device_s: NonNegativeFloat
    """Without loading."""
    evaluated_s: float
    source: str = "assay"
    """`assay`, `lm-evaluation-harness`, `inspect-ai` or `openai-evals`."""
    items_sha256: str
    """SHA-256 of `items.parquet`."""

    def version_sha256(self) -> str:
        """What results must share to be comparable: benchmark, grader and prompts."""
        return sha256_of_json([self.benchmark_sha256, self.grader_sha256, self.prompt_sha256])
