"""What a user asked for (a run) and its lives (attempts), with what each phase of them cost."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.base.names import Name
from assay.records.failure import Failure
from assay.records.node_environment import NodeEnvironment
from assay.records.phase import Phase
from assay.records.processor import Processor
from assay.records.record import Record
from assay.records.suspect import Suspect

RunStatus = Literal["running", "gone", "unknown", "succeeded", "failed", "preempted"]
"""`gone`: it is not done, and who drove it is no more. `unknown`: from here nobody can tell whether it runs."""

SAFE_LEARNING_RATE = 1e-4
"""The recipe's default; what is proposed after a loss that was not finite is at most this."""

DRILL_PREFIX = "drill-"
"""Begins the recipe's name of every pilot that a drill hurts."""


class ForkedFrom(Record):
    """The commit of another run whose weights a fork starts from."""

    run_id: Name
    step: NonNegativeInt
    weights_digest: str
    changes: dict[str, tuple[Any, Any]]
    """Recipe key to its value there and here."""

    def __str__(self) -> str:
        return f"{self.run_id}@{self.step}"


class Run(Record):
    """One recipe on one dataset, until it is done, over as many attempts as it takes."""

    run_id: Name
    created_s: float
    """Seconds since the Unix epoch."""
    recipe: dict[str, Any]
    """The resolved recipe: every value, defaults included."""
    recipe_sha256: str
    dataset_fingerprint: str
    code_version: str
    """The version of assay; with the git commit where it runs from a checkout."""
    run_dir: str
    """Absolute local folder: metrics, logs, reports; and the commits, unless `store_url` says otherwise. In the
    file it is that of the day when the run was made; whoever opens the run has it as it is (`store.place`)."""
    store_url: str
    num_steps: PositiveInt
    """Optimizer steps from the first to the last, as planned."""
    parent: ForkedFrom | None = None
    """None where it began with the recipe's starting weights."""
    is_drill: bool = False
    """Whether `assay drill` made it as an exercise: accounts of failures and of time leave it out by default,
    because its faults were planned."""
    folders: dict[str, str] = Field(default_factory=dict)
    """Key of the recipe -> SHA-256 over the weights and configuration in the checkpoint folder that it names,
    as they were when the run was made."""


class Attempt(Record):
    """One life of a run: from the start of its ranks to the end of the last of them."""

    run_id: str
    attempt: PositiveInt
    """1 for the first."""
    world_size: PositiveInt
    start_step: NonNegativeInt
    """Step of the commit it resumed from; 0 where it began anew."""
    started_s: float
    ended_s: float | None = None
    """None while it runs."""
    end_step: NonNegativeInt | None = None
    """Step of its last commit, or `start_step` where it made none."""
    outcome: Literal["running", "succeeded", "failed", "preempted", "killed"] = "running"
    reason: str = ""
    """Why it ended, in words: `rank 1 was killed by SIGKILL`. For people: `failure` has the facts."""
    failure: Failure | None = None
    """What ended it early; None if nothing did."""
    folder: str
    """Where the run's folder was."""
    code_version: str
    """The version of assay, as in the run's record."""
    processor: Processor
    """What its ranks compute on; all nodes have the same."""
    environment: NodeEnvironment
    """Python, kernel, driver, image, user, job and CUDA on its first node."""
    other_environments: dict[str, NodeEnvironment] = Field(default_factory=dict)
    """Host -> what it has around its ranks, for those where that is not what the first node has."""
    hosts: tuple[str, ...] = ()
    """Name of each rank's machine; empty before the ranks were started."""
    devices: tuple[str, ...] = ()
    """Each rank's device, e.g. `cuda:3`; known once it ended, empty for a rank that died before it had one."""
    serials: tuple[str, ...] = ()
    """The UUID of each rank's device, which goes with it to another host; likewise, and empty for a CPU."""
    loads: tuple[PositiveInt, ...] = ()
    """How many lanes each rank has; empty if the weights are sharded."""
    suspects: tuple[Suspect, ...] = ()
    """Devices that a spot check found to compute wrongly."""
    stalled_s: NonNegativeFloat = 0.0
    """How long all ranks stood still before it was ended for a hang."""

    def resume_command(self) -> str:
        """What goes on with its run, on as many ranks."""
        workers = f" --workers {self.world_size}" if self.world_size > 1 else ""
        return f"assay train --resume {self.run_id}{workers}"


def slower_command(run_id: str, recipe: Mapping[str, Any], *, step: int) -> str:
    """What trains again at a lower learning rate, from a commit or from the beginning (0)."""
    optimizer = recipe.get("trainer", {}).get("optimizer", {})
    rate = min(optimizer.get("learning_rate", SAFE_LEARNING_RATE) / 10, SAFE_LEARNING_RATE)
    return f"assay train --from {run_id}@{step} trainer.optimizer.learning_rate={rate:.3g}"


class PhaseSeconds(Record):
    """Device time of one rank in one attempt. The phases sum to the time the device was held.

    Attempt 0 is none: it holds what evaluating the run's commits cost, over all workers, and is no part of what
    training cost.
    """

    run_id: str
    attempt: NonNegativeInt
    rank: NonNegativeInt
    held_s: NonNegativeFloat
    seconds: dict[Phase, NonNegativeFloat]
