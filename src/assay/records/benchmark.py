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
    """The power of a paired comparison."""

    effect: NonNegativeFloat
    """Smallest difference found with `power`."""
    power: float = 0.8
    confidence: float = 0.95
    correlation: float = 0.0
    """For two checkpoints' item scores."""


class Contamination(Record):
    """Overlap with the training data."""

    dataset_fingerprint: str
    unit: str
    ngram: PositiveInt
    num_ngrams: NonNegativeInt
    """In the benchmark; 0 if it is too short."""
    num_found: NonNegativeInt
    """In the training data."""
    num_items: NonNegativeInt
    num_items_searched: NonNegativeInt
    """Those long enough for an n-gram."""
    items_found: tuple[str, ...] = ()
    """Up to 100 with at least `item_threshold` of their n-grams found."""
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
    """Recipe name."""
    seed: NonNegativeInt = 0
    """For training."""
    step: NonNegativeInt
    weights_digest: str
    benchmark: str
    benchmark_sha256: str
    """Over definition and items."""
    grader_sha256: str
    prompt_sha256: str
    """Over prompts and sampling settings."""
    num_items: PositiveInt
    num_failed: NonNegativeInt
    """Without score, due to infrastructure."""
    failures: dict[str, int] = Field(default_factory=dict)
    """By kind."""
    incomplete_reason: str = ""
    """Such a result is not compared."""
    num_prompts_cut: NonNegativeInt | None = None
    """To the context length."""
    num_completions_cut: NonNegativeInt | None = None
    """At `max_tokens`."""
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
    items_sha256: str
    """For `items.parquet`."""

    def version_sha256(self) -> str:
        """What results must share to be comparable: benchmark, grader and prompts."""
        return sha256_of_json([self.benchmark_sha256, self.grader_sha256, self.prompt_sha256])
