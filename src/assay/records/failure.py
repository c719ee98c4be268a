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
    """Why an attempt ended before its time."""

    failure_kind: FailureKind
    run_id: str
    attempt: PositiveInt
    rank: NonNegativeInt | None = None
    """Whom it befell; None where it was not one rank."""
    host: str = ""
    """Name of that rank's machine."""
    device: str = ""
    """The device of that rank, e.g. `cpu` or `cuda:3`; empty where it died before it had one."""
    phase: Phase | None = None
    """What the rank was doing."""
    step: NonNegativeInt | None = None
    """The update under way; None before the rank's first sign of life."""
    signature: str
    """Equal for two failures that are alike: `ValueError in training.trainer.step.Stepper.step < ...`."""
    text: str
    """In the words of who noticed it: an error with its message, the name of a signal."""
    file: str = ""
    """Where the traceback or the stacks lie, relative to the run's folder; empty where there are none."""

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
