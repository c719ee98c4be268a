"""What the supervisor tells a rank, and what the rank says at its end: plain values for a pipe."""

import signal
from dataclasses import dataclass
from typing import Literal

from assay.base.errors import AssayError
from assay.launch.ranks.faults import FaultPlan
from assay.records.commit import Commit
from assay.records.failure import Failure
from assay.records.run import Attempt, Run

Parallel = Literal["ddp", "fsdp2"]
"""Each rank holds all weights | a shard of them. The numbers are the same; it may change at every restart."""


@dataclass(frozen=True)
class RankTask:
    """All that a rank needs to know."""

    run: Run
    attempt: Attempt
    commit: Commit | None
    """Where to resume; None starts anew."""
    rank: int
    rendezvous: str
    """URL where the ranks of the attempt meet, see `training.parallel.ranks`."""
    environment: dict[str, str]
    """The supervisor's: the fork server has that of the moment when it was started."""
    heartbeats: str
    """File of the attempt's heartbeat page."""
    faults: FaultPlan
    supervisor_pid: int
    parallel: Parallel
    failure_s: float
    """Mean time between the failures of this run so far."""


@dataclass(frozen=True)
class RankBegan:
    """A rank's first words: it has met the others."""

    device: str


@dataclass(frozen=True)
class RankReport:
    """A rank's last words."""

    outcome: Literal["finished", "stopped", "failed"]
    failure: Failure | None = None
    """What ended it; None where nothing did."""
    error: AssayError | None = None
    """What a user can act on; None where the failure is a surprise."""


class StopFlag:
    """Set by SIGTERM; the trainer looks at it once a step."""

    def __init__(self) -> None:
        self.is_set = False
        signal.signal(signal.SIGTERM, self._set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # the fork server held it back

    def _set(self, *_: object) -> None:
        self.is_set = True
