"""What a replay found: whether the numbers came out again, and what in the step is to blame."""

from typing import ClassVar, Literal

from pydantic import NonNegativeInt, PositiveInt

from assay.records.record import Record
from assay.records.statement import Statement

Verdict = Literal["equal", "differs", "not recorded"]

Cause = Literal["wrong arithmetic", "other machine or code", "bad data", "divergence", "optimisation", "ordinary"]
"""The cause of a step that looks bad. `ordinary`: it does not."""


class Compared(Record):
    """A recorded value and its replay."""

    step: PositiveInt
    quantity: str
    """E.g. `loss`, `lane 3 gradient_digest`."""
    recorded: str
    replayed: str
    is_equal: bool
    """Bitwise."""


class OperatorFinding(Record):
    """The first operator with a wrong result."""

    operator: str
    problem: Literal["not finite", "outside its error bound"]
    module: str
    """Path in the model; empty outside it."""
    phase: Literal["forward", "backward", "update"]
    inputs: tuple[str, ...]
    """E.g. `float32[8, 40, 16]`."""
    output: str
    detail: str
    lane: NonNegativeInt | None
    row_ids: tuple[NonNegativeInt, ...]
    """Affected, or the whole micro-batch."""


class OperatorWatchReport(Record):
    """Result of watching each operator."""

    kind: ClassVar[str] = "operator_watch"

    mode: Literal["watch", "audit-ops"]
    finding: OperatorFinding | None
    num_calls: NonNegativeInt
    num_operators: NonNegativeInt
    not_audited: dict[str, str]
    """Operator to the reason."""
    raised: str = ""
    """Error that ended the step."""
    as_written: bool = False
    """Compiled layers ran eagerly; later values are not compared."""


class RowFinding(Record):
    """A row that makes a step bad."""

    row_id: NonNegativeInt
    location: str
    lane: NonNegativeInt
    loss: float | None
    """In nats, without dropout."""
    text: str = ""
    """Its beginning."""
    origin: str = ""
    """Source file and line."""


class RowSearch(Record):
    """The rows that make a step bad."""

    criterion: str
    rows: tuple[RowFinding, ...]
    num_rows: NonNegativeInt
    num_passes: NonNegativeInt
    step_loss: float | None
    """Mean without dropout."""
    loss_without: float | None
    """Without the rows found."""
    earlier_loss: float | None
    """For earlier steps' rows, same weights."""


class Explanation(Record):
    """Why a step looks bad."""

    cause: Cause
    because: Statement


class ReplayReport(Record):
    """A replay of steps."""

    run_id: str
    step: PositiveInt
    through_step: PositiveInt
    from_step: NonNegativeInt
    """Commit that it started from, or 0."""
    attempt: NonNegativeInt
    """The recorded one; 0: none."""
    recorded_code_version: str
    code_version: str
    verdict: Verdict
    compared: NonNegativeInt
    at_step: tuple[Compared, ...]
    """At the step and after."""
    first_difference: Compared | None
    loss: float | None
    gradient_norm: float | None
    lane_loss: float | None = None
    """For `--lane`."""
    operators: OperatorWatchReport | None = None
    rows: RowSearch | None = None
    explanation: Explanation | None = None


class PartReplay(Record):
    """What a cluster trained between two outer steps, trained again."""

    outer_step: PositiveInt
    cluster: str
    differing: tuple[str, ...]
    """Fields of its part that came out different, e.g. `change_sha256`; empty: equal bits."""
    is_restored: bool = False
    """Its change was damaged in the meeting place, and is there again."""


class OuterReplayReport(Record):
    """A replay of all clusters' parts of outer steps."""

    run_id: str
    first_outer_step: PositiveInt
    last_outer_step: PositiveInt
    recorded_code_version: str
    code_version: str
    verdict: Verdict
    parts: tuple[PartReplay, ...]
    """In the order of the clusters' names."""
    weights: Compared | None
    """The weights after the last outer step; null: the run has no commit of it."""


class RolloutReport(Record):
    """A rollout, generated again."""

    run_id: str
    step: PositiveInt
    row_id: NonNegativeInt
    row_location: str
    sample: NonNegativeInt
    lane: NonNegativeInt
    policy_step: NonNegativeInt
    """Updates of the sampling weights."""
    from_step: NonNegativeInt
    """Commit that generation started from, or 0."""
    recorded_code_version: str
    code_version: str
    verdict: Verdict
    compared: tuple[Compared, ...]
    prompt: str
    completion: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """The sampler's, of `tokens`."""
    ended_by: Literal["stop", "length"]
    reward: float | None
    failure: str | None
    """Why it has no reward."""
    group_rewards: tuple[float | None, ...]
    advantage: float | None
    outcome: str
    because: str
