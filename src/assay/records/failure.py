"""What went wrong in an attempt: a fact with fields, made where it is noticed, and the sentence that it makes.

    a rank     an exception, with its traceback at hand
    its node   a signal, an exit code without a word
    the lead   a rank that hangs, a node that is lost, ranks that do not leave

Whoever asks later what happened asks the fields; the sentences here are for people, and nothing reads them.
Two failures are alike if their signatures are equal: it names the kind of error and where in our code it arose,
without what differs each time (numbers, paths, addresses).
"""

from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from assay.records.phase import Phase
from assay.records.record import Record

FailureKind = Literal[
    "exception",
    "out_of_memory",
    "loss_not_finite",
    "wrong_arithmetic",
    "damaged_data",
    "data_error",
    "config_error",
    "store_unreachable",
    "disk_full",
    "fenced",
    "refused",
    "peer_lost",
    "exited",
    "crashed",
    "killed_by_signal",
    "hang",
    "lost_node",
    "not_gone_after_sigterm",
    "supervisor_gone",
]
"""`exception`: a surprise. `refused`: an error that says what to do, of no other kind. `peer_lost`: a rank that
could not reach another one, which is the cause. `exited`: without a word. `crashed`: by a signal that a process
brings upon itself; `killed_by_signal`: by one that comes from outside."""

FROM_OUTSIDE: frozenset[FailureKind] = frozenset(("killed_by_signal", "lost_node", "peer_lost"))
"""The node's fault or the cluster's: the same code may well get through the same step the next time."""


class Failure(Record):
    """Why an attempt ended early; `text` is the original error message."""

    failure_kind: FailureKind
    run_id: str
    attempt: PositiveInt
    rank: NonNegativeInt | None = None
    """Null if not one rank failed."""
    host: str = ""
    device: str = ""
    phase: Phase | None = None
    step: NonNegativeInt | None = None
    signature: str
    """Equal for similar failures."""
    text: str
    file: str = ""
    """Traceback or stacks, relative to the run."""

    def headline(self) -> str:
        """What happened to whom, without what else was seen: `rank 1 hung in 'compute' of step 7`."""
        who = "a rank" if self.rank is None else f"rank {self.rank}"
        match self.failure_kind:
            case "crashed" | "killed_by_signal":
                return f"{who} was killed by {self.text}"
            case "hang" if self.step is None:
                return f"{who} hung in 'startup' before its first sign of life"
            case "hang":
                return f"{who} hung in '{self.phase}' of step {self.step}"
            case "lost_node" | "not_gone_after_sigterm" | "supervisor_gone":
                return self.text
            case _:
                return f"{who}: {self.text}"

    def sentence(self, run_dir: str | Path) -> str:
        """All of it, with the file that tells more."""
        path = Path(run_dir) / self.file
        if self.failure_kind == "hang":
            stacks = f"stacks in {path}" if self.file else "it wrote no stacks"
            return f"{self.headline()}: {self.text}; {stacks}"
        return f"{self.headline()}; traceback in {path}" if self.file else self.headline()
