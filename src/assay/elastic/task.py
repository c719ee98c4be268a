"""What the supervisor tells a rank, and what ranks say at their end: plain values, for a pipe or for the line
between two nodes."""

import signal
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, PlainSerializer, PlainValidator

from assay.base import errors
from assay.base.errors import AssayError
from assay.elastic.faults import FaultPlan
from assay.records.commit import Commit
from assay.records.failure import Failure
from assay.records.rank_device import RankDevice
from assay.records.run import Attempt, Run
from assay.records.suspect import Suspect, WrongArithmeticError

Parallel = Literal["ddp", "fsdp2"]
"""Each rank holds all weights | a shard of them. The numbers are the same; it may change at every restart."""


class Orders(BaseModel):
    """What the supervisor decides about an attempt, for every rank of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    attempt: Attempt
    commit: Commit | None
    """Where to resume; None starts anew."""
    faults: FaultPlan
    parallel: Parallel
    failure_s: float
    """Mean time between the failures of this run so far."""
    verify_commits: int = 0
    """Read one commit in so many back before it becomes visible; 0 for none."""
    times_lanes: bool = False
    """Write down what each lane takes, and at the end what messages between the ranks take."""
    nodes: tuple[int, ...] = ()
    """How many ranks each node has, in their order; nothing where all are on one."""


@dataclass(frozen=True)
class RankTask:
    """All that a rank needs to know."""

    run: Run
    orders: Orders
    rank: int
    rendezvous: str
    """URL where the ranks of the attempt meet, see `training.parallel.ranks`."""
    environment: dict[str, str]
    """The supervisor's: the fork server has that of the moment when it was started."""
    heartbeats: str
    """File of the attempt's heartbeat page."""
    supervisor_pid: int


@dataclass(frozen=True)
class RankBegan:
    """A rank's first words: it has met the others."""

    device: RankDevice


@dataclass(frozen=True)
class RankReport:
    """A rank's last words."""

    outcome: Literal["finished", "stopped", "failed"]
    failure: Failure | None = None
    """What ended it; None where nothing did."""
    error: AssayError | None = None
    """What a user can act on; None where the failure is a surprise."""


def _error_fields(error: AssayError) -> dict[str, Any]:
    """By the name of its class: one of `base.errors`, or `WrongArithmeticError` with its suspects."""
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
    """Ranks that did not die by themselves."""
    message: str = ""
    """How it ended where nothing failed."""
    failure: Failure | None = None
    error: Annotated[AssayError, PlainValidator(_as_heard), PlainSerializer(_error_fields)] | None = None
    """The failure's error, where it is one that a user can act on."""
    stalled_s: float = 0.0

    def reason(self, run_dir: str) -> str:
        """Why it ended, in words."""
        return self.failure.sentence(run_dir) if self.failure else self.message


class StopFlag:
    """Set by SIGTERM; the trainer looks at it once a step, generation between tokens."""

    def __init__(self) -> None:
        self.is_set = False
        signal.signal(signal.SIGTERM, self._set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # the fork server held it back

    def _set(self, *_: object) -> None:
        self.is_set = True
