"""Messages between the supervisor and its ranks: plain values that travel through a pipe or between nodes."""

import signal
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, PlainSerializer, PlainValidator

from assay.base import errors
from assay.base.errors import AssayError
from assay.elastic.faults import FaultPlan
from assay.records.commit import Commit
from assay.records.failure import Failure
from assay.records.run import Attempt, Run
from assay.records.suspect import Suspect, WrongArithmeticError

Parallel = Literal["ddp", "fsdp2"]
"""Each rank holds all weights | a shard of them. Results are the same, so it may change at every restart."""


class Orders(BaseModel):
    """The supervisor's settings of an attempt, equal for all ranks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    attempt: Attempt
    commit: Commit | None
    """The commit to resume from; None starts at step 0."""
    faults: FaultPlan
    parallel: Parallel
    failure_s: float
    """Mean time between failures of this run so far."""
    verify_commits: int = 0
    """Read back every n-th commit before it becomes visible; 0 turns verification off."""
    times_lanes: bool = False
    """Record the time of each lane, and at the end the time of messages between ranks."""
    nodes: tuple[int, ...] = ()
    """Number of ranks of each node, in rank order; empty if all ranks are on one node."""


@dataclass(frozen=True)
class RankTask:
    """Everything that a rank process needs."""

    run: Run
    orders: Orders
    rank: int
    rendezvous: str
    """URL where the ranks of the attempt meet, see `distributed.ranks`."""
    environment: dict[str, str]
    """The supervisor's environment, because that of the fork server may be outdated."""
    heartbeats: str
    """Path of the attempt's heartbeat page."""
    supervisor_pid: int


@dataclass(frozen=True)
class RankReport:
    """The last message of a rank; the first one is its `RankDevice`, once it has joined the process group."""

    outcome: Literal["finished", "stopped", "failed"]
    failure: Failure | None = None
    """The failure that ended the rank, if any."""
    error: AssayError | None = None
    """The error that a user can act on; None for an unexpected failure."""


def _error_fields(error: AssayError) -> dict[str, Any]:
    """Serialize an error by class name: one of `base.errors`, or `WrongArithmeticError` with its suspects."""
    suspects = error.suspects if isinstance(error, WrongArithmeticError) else ()
    return {"kind": type(error).__name__, "text": str(error), "suspects": suspects}


class _ErrorFields(BaseModel):
    kind: str
    text: str
    suspects: tuple[Suspect, ...] = ()


def _as_heard(tree: Any) -> AssayError:
    fields = _ErrorFields.model_validate(tree)
    if fields.kind == WrongArithmeticError.__name__:
        return WrongArithmeticError(fields.text, fields.suspects)
    kinds = {kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type)}
    error: AssayError = kinds.get(fields.kind, AssayError)(fields.text)
    return error


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ended."""

    outcome: Literal["succeeded", "failed", "preempted", "killed"]
    num_alive: int
    """Ranks that did not cause the end: those still running, and those that lost a peer."""
    message: str = ""
    """How the attempt ended if nothing failed."""
    failure: Failure | None = None
    error: Annotated[AssayError, PlainValidator(_as_heard), PlainSerializer(_error_fields)] | None = None
    """The error of the failure, if a user can act on it."""
    stalled_s: float = 0.0

    def reason(self, run_dir: str) -> str:
        """Return why the attempt ended, as a sentence."""
        return self.failure.sentence(run_dir) if self.failure else self.message


class StopFlag:
    """Set by SIGTERM; checked once per training step and between generated tokens."""

    def __init__(self) -> None:
        self.is_set = False
        signal.signal(signal.SIGTERM, self._set)
        signal.pthread_sigmask(
            signal.SIG_UNBLOCK, {signal.SIGTERM}
        )  # blocked by the fork server until this handler exists

    def _set(self, *_: object) -> None:
        self.is_set = True
