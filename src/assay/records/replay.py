"""What a replay found: whether the numbers came out again, and what in the step is to blame."""

from typing import ClassVar, Literal

from pydantic import NonNegativeInt, PositiveInt

from assay.records.record import Record

Verdict = Literal["equal", "differs", "not recorded"]

Cause = Literal[
    "wrong arithmetic", "other machine or code", "bad data", "divergence", "optimisation", "ordinary"
]
"""The cause of a step that looks bad. `ordinary`: it does not."""


class Compared(Record):
    """One number that the run wrote down, beside the replay's."""

    step: PositiveInt
    quantity: str
    """`loss`, `gradient_norm`, `gradient_digest`, `weights_digest`, `lane 3 gradient_digest`."""
    recorded: str
    replayed: str
    is_equal: bool
    """In every bit."""


class OperatorFinding(Record):
    """The first operator that went wrong."""

    operator: str
    """As torch's dispatcher calls it: `aten.sum.dim_IntList`."""
    problem: Literal["not finite", "outside its error bound"]
    module: str
    """Path in the model, for the root its class name; empty outside of it (loss, sums of gradients, update)."""
    phase: Literal["forward", "backward", "update"]
    inputs: tuple[str, ...]
    """Type and shape: `float32[8, 40, 16]`."""
    output: str
    detail: str
    """What is wrong with the output, with its numbers."""
    lane: NonNegativeInt | None
    row_ids: tuple[NonNegativeInt, ...]
    """Rows of the micro-batch, or those of them that the wrong numbers belong to."""


class OperatorWatchReport(Record):
    """What a watched step did."""

    kind: ClassVar[str] = "operator_watch"

    mode: Literal["watch", "audit-ops"]
    finding: OperatorFinding | None
    num_calls: NonNegativeInt
    """Operators that were looked at."""
    num_operators: NonNegativeInt
    """Different ones."""
    not_audited: dict[str, str]
    """Operators that no reference was made for, and why; empty for `watch`."""
    raised: str = ""
    """The error with which the step itself ended, if it did."""
    as_written: bool = False
    """The run makes programs of its layers (`trainer.compile`), into which no watch sees: they were computed as
    they are written, to other bits. Nothing is compared from this step on."""


class RowFinding(Record):
    """A row that makes the step bad."""

    row_id: NonNegativeInt
    place: str
    """Shard, row group, row of it."""
    lane: NonNegativeInt
    loss: float | None
    """In nats, without dropout; None where it is not finite."""
    text: str = ""
    """The beginning of the row; empty where the dataset has no tokenizer beside it."""
    origin: str = ""
    """Its source file and line, or why they are not known; empty of all but the first rows."""


class RowSearch(Record):
    """Which rows make a step bad."""

    criterion: str
    """What `bad` means here, in words with numbers."""
    rows: tuple[RowFinding, ...]
    num_rows: NonNegativeInt
    """Rows of the step."""
    num_passes: NonNegativeInt
    """Forward passes that the search took."""
    step_loss: float | None
    """Mean over the step's rows, without dropout; None where it is not finite."""
    loss_without: float | None
    """The same without the rows that were named."""
    earlier_loss: float | None
    """Mean loss of the steps before, with the same weights: what this step's data is held against."""


class Explanation(Record):
    """Why a step looks bad."""

    cause: Cause
    because: str


class ReplayReport(Record):
    """A replay of one step, or of a stretch of them."""

    run_id: str
    step: PositiveInt
    through_step: PositiveInt
    from_step: NonNegativeInt
    """The step of the commit that it began from; 0: the starting weights."""
    attempt: NonNegativeInt
    """Whose record of the step is compared; 0 where no attempt wrote it down."""
    recorded_code_version: str
    code_version: str
    verdict: Verdict
    compared: NonNegativeInt
    """Numbers, over all replayed steps."""
    at_step: tuple[Compared, ...]
    """The comparisons of the step itself and behind it."""
    first_difference: Compared | None
    loss: float | None
    """Loss of the step, replayed; None where it is not finite."""
    gradient_norm: float | None
    lane_loss: float | None = None
    """Mean over the rows of the lane that was asked for."""
    operators: OperatorWatchReport | None = None
    rows: RowSearch | None = None
    explanation: Explanation | None = None
