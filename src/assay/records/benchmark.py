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
    """What a comparison of two checkpoints on these items could find; known before any comparison is made."""

    effect: NonNegativeFloat
    """Smallest true difference of the mean score that is found with probability `power`; the score's unit."""
    power: float = 0.8
    confidence: float = 0.95
    """Level of the two-sided paired test; one seed a side, so the seeds' own variance is not in it."""
    correlation: float = 0.0
    """Between the two checkpoints' scores of one item. 0 is cautious; pairs that agree need fewer items."""


class Contamination(Record):
    """How much of a benchmark's text the training data holds."""

    dataset_fingerprint: str
    """Fingerprint of the training data that was searched."""
    unit: str
    """What an n-gram is made of: `words`; where a script shows none, characters count as words."""
    ngram: PositiveInt
    num_ngrams: NonNegativeInt
    """N-grams of the benchmark's text. 0: it is too short to be searched, and nothing is known."""
    num_found: NonNegativeInt
    """Those that occur in the training data, too."""
    num_items: NonNegativeInt
    """Items of the benchmark."""
    num_items_searched: NonNegativeInt
    """Those that hold an n-gram. The others are too short: whether they were trained on is not known."""
    items_found: tuple[str, ...] = ()
    """Items of which at least `item_threshold` of the n-grams occur there, the worst first; at most 100."""
    num_items_found: NonNegativeInt = 0
    item_threshold: float = 0.5
    score_without: float | None = None
    """The benchmark's score over the items that are not among them; None where none is left."""

    @property
    def overlap(self) -> float | None:
        """Share of the benchmark's n-grams that the training data holds; None where it has none."""
        return self.num_found / self.num_ngrams if self.num_ngrams else None


class BenchmarkResult(Record):
    """One checkpoint on one benchmark."""

    run_id: str
    """Empty where the checkpoint comes from no run of ours."""
    candidate: str
    """Which recipe it is of, e.g. `baseline`; results that differ in the seed only share it."""
    seed: NonNegativeInt = 0
    """The seed of the training run: the unit of replication."""
    step: NonNegativeInt
    weights_digest: str
    benchmark: str
    benchmark_sha256: str
    """SHA-256 of the benchmark's whole definition with its items."""
    grader_sha256: str
    """SHA-256 of the rule that turns an answer into a score."""
    prompt_sha256: str
    """SHA-256 of all prompts as the model got them, and of how completions are sampled."""
    num_items: PositiveInt
    num_failed: NonNegativeInt
    """Items without a score: the machinery failed (a timeout, a grader that broke), not the model."""
    failures: dict[str, int] = Field(default_factory=dict)
    """Kind of failure -> items."""
    incomplete_reason: str = ""
    """Why it is not of all items: the log it was imported from was cut short. Nothing is compared with it."""
    num_prompts_cut: NonNegativeInt | None = None
    """Items whose prompt lost its beginning, for which the model had no room; null where nobody counted."""
    num_completions_cut: NonNegativeInt | None = None
    """Scored items whose completion was cut at `max_tokens`; null where none is sampled, or nobody counted."""
    score: Estimate
    """Weighted mean over the scored items; the interval is clustered."""
    higher_is_better: bool = True
    unit: str = "share"
    """`share` of items solved, `bits per byte`, `nats`, ..."""
    could_detect: DetectableEffect | None
    """None with fewer than two clusters."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Whatever else the benchmark reports, e.g. `f1_score`, `counts/A`."""
    contamination: Contamination | None = None
    device_s: NonNegativeFloat
    """Time in which its items were scored. What loading took, and what killed workers lost, the run bears."""
    evaluated_s: float
    """Seconds since the Unix epoch."""
    source: str = "assay"
    """Who scored it: `assay`, `lm-evaluation-harness`, `inspect-ai`, `openai-evals`."""
    items_sha256: str
    """SHA-256 of `items.parquet`."""

    def version_sha256(self) -> str:
        """What results must share to be comparable: benchmark, grader and prompts."""
        return sha256_of_json([self.benchmark_sha256, self.grader_sha256, self.prompt_sha256])
