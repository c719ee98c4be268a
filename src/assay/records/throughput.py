"""Throughput on more workers: measurements, the forecast that follows, and its comparison with a run.

some seconds of real steps -> ThroughputCalibration -> ThroughputForecast -> ThroughputCheck
"""

from typing import Any, ClassVar, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from assay.records.evaluation import Estimate
from assay.records.processor import Processor
from assay.records.record import Record

ThroughputTerm = Literal[
    "lanes",
    "uneven",
    "slowest",
    "contention",
    "data",
    "rollouts",
    "fixed",
    "bytes",
    "latency",
    "commits",
    "failures",
]
"""What a step's time is made of: the lanes' own work, shared evenly; more than an even share on the worker that
has the most lanes; the slowest worker of each step; workers of one machine in each other's way; waiting for
rows; answers of the model to prompts, and their grades; the optimizer and what else each worker does by itself;
the exchange of gradients, by its bytes and by its messages; commits; restarts and what they lose."""


ParallelMode = Literal["ddp", "fsdp2"]
"""Every worker holds all weights, or a shard of them."""


class TimedStep(Record):
    """One step of a single worker, without commits and evaluations."""

    lane_s: tuple[NonNegativeFloat, ...]
    """[lane]: forward and backward, over all of its passes and updates."""
    data_s: NonNegativeFloat
    """Waiting for rows: where they take longer than all else, in the long run."""
    rollout_s: NonNegativeFloat
    """Generating completions and grading them; 0 where rows are no prompts."""
    reward_s: NonNegativeFloat = 0.0
    """The part of `rollout_s` that grading took."""
    fixed_s: NonNegativeFloat
    """All else: clipping, the optimizer, the account of the step."""


class GradientBucket(Record):
    """Gradients that are exchanged as one."""

    num_bytes: PositiveInt
    before_last_s: NonNegativeFloat
    """How long before the last bucket it is ready, in the last backward pass of a step."""


class TimedMessage(Record):
    """One turn of workers that send each other as much, both ways at once."""

    num_bytes: PositiveInt
    """Each way."""
    seconds: PositiveFloat


class TwoWorkers(Record):
    """What two workers showed."""

    num_nodes: PositiveInt
    """1: both were on one machine."""
    num_steps: PositiveInt
    step_s: PositiveFloat
    """The mean, without commits."""
    contention: PositiveFloat
    """Seconds that a lane takes beside another worker of its machine, over those it takes alone, for as many
    tokens."""
    messages: tuple[TimedMessage, ...]
    added_bytes_per_s: PositiveFloat
    """How fast gradients are added."""


class ThroughputCalibration(Record):
    """What a forecast of a recipe on any number of workers follows from."""

    recipe_name: str
    recipe: dict[str, Any]
    """Dotted key -> value of what decides it, without the dataset's path."""
    recipe_sha256: str
    """As in the record of a run: it names recipe and dataset."""
    dataset_fingerprint: str
    code_version: str
    processor: Processor
    host: str
    """Where it was measured."""
    measured_s: float
    """When: seconds since the Unix epoch."""
    on_cuda: bool
    lanes: PositiveInt
    global_batch_size: PositiveInt
    num_steps: PositiveInt
    """Optimizer steps of the whole run."""
    evaluated_steps: NonNegativeFloat
    """All evaluations on the validation rows, in steps of as many tokens: a forward pass is a third of one."""
    commit_every: PositiveInt | None
    """Steps; None where the measured cost of a commit decides."""
    evaluate_every: PositiveInt | None
    """Steps, each with a commit; None at the end only."""
    spot_check_every: PositiveInt | None
    """Steps in which each worker computes one more lane; None where nothing is checked."""
    updates_per_step: PositiveInt
    """Each with an exchange."""
    steps: tuple[TimedStep, ...]
    """By one worker, the first ones left out."""
    buckets: tuple[GradientBucket, ...]
    """In the order of their exchange."""
    loader_threads: PositiveInt
    loader_row_s: NonNegativeFloat
    """Seconds for a row that is read by itself, with nothing else to do: what one worker's loader can give."""
    commit_held_s: NonNegativeFloat
    """For which training stands still for a commit."""
    commit_written_s: NonNegativeFloat
    """From then on, until it is durable."""
    commit_bytes: NonNegativeInt
    start_s: NonNegativeFloat
    """From the command to the first step, beyond what the step takes."""
    restart_s: NonNegativeFloat
    """Likewise, of an attempt that goes on from a commit."""
    two_workers: TwoWorkers | None
    """None where there was room for one only."""

    @property
    def gradient_bytes(self) -> int:
        """All of them."""
        return sum(bucket.num_bytes for bucket in self.buckets)

    @property
    def largest_measured(self) -> int:
        """Workers."""
        return 2 if self.two_workers else 1


EqualBits = Literal[
    "row_at_any_position",
    "row_in_any_number_of_rows",
    "attention_twice",
    "attention_row_alone",
    "attention_gradient_of_row_alone",
    "captured_graph",
]
"""A row of a product at any position, and among any number of rows; attention over row borders computed twice, of a row
alone and among others, and its gradient; a captured graph and plain calls."""


class GpuFacts(Record):
    """Ceilings of a GPU, and which results have equal bits on it."""

    card: str
    """As its driver names it."""
    torch: str
    dense_flops: PositiveFloat | None = None
    """Bfloat16 rate of the data sheet in FLOP/s; None if the card is not listed."""
    has_bfloat16: bool = False
    free_bytes: NonNegativeInt = 0
    """Memory that no process uses."""
    total_bytes: NonNegativeInt = 0
    product_flops: NonNegativeFloat = 0.0
    """Measured: a product of square bfloat16 matrices, in FLOP/s."""
    copied_bytes_per_s: NonNegativeFloat = 0.0
    """Measured: bytes read and written."""
    equal_bits: dict[EqualBits, bool]
    failures: dict[str, str]
    """Part that could not be measured -> reason."""


class NetworkLink(Record):
    """A link between workers."""

    bytes_per_s: PositiveFloat
    """Each direction."""
    latency_s: NonNegativeFloat


class WorldSizeForecast(Record):
    """Forecast for one world size."""

    kind: ClassVar[str] = "world_forecast"

    world_size: PositiveInt
    nodes: tuple[PositiveInt, ...]
    """Workers per node."""
    max_lanes: PositiveInt
    """For the worker with the most."""
    step_s: Estimate
    """Without commits, evaluations and restarts."""
    speedup: Estimate
    """Over one worker."""
    efficiency: Estimate
    terms: dict[ThroughputTerm, float]
    """Seconds per step; all but `commits` and `failures` sum to `step_s`."""
    binds: ThroughputTerm
    """The largest term."""
    phases: dict[str, NonNegativeFloat]
    """Seconds per step of the mean worker."""
    sent_bytes: NonNegativeInt
    """Maximum per worker and step."""
    inter_node_bytes: NonNegativeInt
    """Maximum leaving a node."""
    commit_every_steps: PositiveFloat
    failures: NonNegativeFloat
    """Expected number."""
    run_s: Estimate
    """Wall time."""
    device_hours: Estimate
    extrapolation_factor: PositiveFloat
    """Over the largest measured world size."""


class SpeedupTarget(Record):
    """Probability of reaching a speedup."""

    world_size: PositiveInt
    speedup: PositiveFloat
    probability: NonNegativeFloat


class ThroughputAdvice(Record):
    """A change and its saving."""

    change: str
    overrides: tuple[str, ...]
    """`key=value`, or options."""
    world_size: PositiveInt
    time_saved: float
    """Share of the wall time."""
    device_hours_saved: float
    changes_learning: bool
    """The weights will differ."""


class ClusterTraining(Record):
    """Forecast of one way to train the recipe."""

    step_s: Estimate
    rows_per_s: PositiveFloat
    sent_bytes: NonNegativeInt
    """By one cluster, for each step."""
    received_bytes: NonNegativeInt


class ClustersForecast(Record):
    """Forecast over several clusters that take outer steps (docs/outer.md)."""

    num_clusters: PositiveInt
    every: PositiveInt
    """Inner steps between two outer steps."""
    bits: PositiveInt
    """Bits of a weight's change."""
    world_size: PositiveInt
    """Workers of each cluster."""
    trainings: dict[Literal["one_cluster", "synchronous", "outer_steps"], ClusterTraining]
    """Each with the recipe's batch, which clusters share."""
    pause_s: NonNegativeFloat
    """Duration of an outer step: commit, exchange of the changes."""
    waiting_share: NonNegativeFloat
    """Share of the time in pauses."""
    advised_every: NonNegativeInt
    """Smallest `outer.every` that keeps this share at 5%."""
    least_deadline_s: NonNegativeFloat
    """Smallest `outer.deadline_s` without late parts."""
    deadline_after_death_s: NonNegativeFloat
    """Smallest one at which a cluster that dies once is not late."""


class ThroughputForecast(Record):
    """Forecast of a recipe at several world sizes."""

    calibration_sha256: str
    recipe_name: str
    devices_per_node: PositiveInt
    inside: NetworkLink | None
    """Within a node."""
    between: NetworkLink | None
    """Between nodes."""
    failures_per_node_h: NonNegativeFloat
    restart_s: NonNegativeFloat
    parallel: ParallelMode = "ddp"
    sizes: tuple[WorldSizeForecast, ...]
    link: NetworkLink | None = None
    """Between a cluster and the store where clusters meet."""
    clusters: tuple[ClustersForecast, ...] = ()
    """For each size; empty without a link."""
    targets: tuple[SpeedupTarget, ...]
    notes: tuple[str, ...]
    advice: tuple[ThroughputAdvice, ...]
    """Largest saving first."""


class CheckedTerm(Record):
    """Forecast and measurement of a phase."""

    phase: str
    count: PositiveInt
    """Steps, commits, or 1."""
    forecast_s: NonNegativeFloat
    measured_s: NonNegativeFloat

    @property
    def off_by_s(self) -> float:
        """Over the attempt: forecast less measured."""
        return self.count * (self.forecast_s - self.measured_s)


class ThroughputCheck(Record):
    """A forecast compared with an attempt."""

    calibration_sha256: str
    run_id: str
    attempt: PositiveInt
    world_size: PositiveInt
    num_steps: PositiveInt
    step_s: Estimate
    """Forecast."""
    measured_step_s: PositiveFloat
    is_within: bool
    """The measured step is in the forecast's interval."""
    terms: tuple[CheckedTerm, ...]
    worst: str
    """Phase with the largest error."""
    notes: tuple[str, ...]
