"""A run, its attempts, and the device time of each phase."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.base.errors import ConfigError
from assay.base.names import Name
from assay.records.failure import Failure
from assay.records.node_environment import NodeEnvironment
from assay.records.phase import Phase
from assay.records.processor import Processor
from assay.records.record import Record
from assay.records.suspect import Suspect

RunStatus = Literal["running", "gone", "unknown", "succeeded", "failed", "preempted"]
"""`gone`: unfinished, and its driver has exited. `unknown`: its state cannot be determined from this host."""
AT_WORK: tuple[RunStatus, ...] = ("running", "unknown")

SAFE_LEARNING_RATE = 1e-4
"""Default of the recipe; upper limit of the rate proposed after a non-finite loss."""

DRILL_PREFIX = "drill-"
"""Prefix of recipe names of pilots in drills."""


TRAINING_TOOLS = ("accelerate", "lightning", "python", "tinker", "transformers")
"""Tools whose runs record themselves while they train (`assay.record`); `python` is a loop of the user's own, and
`tinker` a session of the Tinker API, which its worker records."""


RECORD_AS_VARIABLE = "ASSAY_RECORD_AS"
"""Environment variable with the run's id, set by a campaign that starts a script; it replaces the script's name."""


class ImportedFrom(Record):
    """The other tool that kept or trained a run. Such a run has metrics, but no recipe and no receipts.

    A run that a training tool recorded also has attempts, device time and the tool's own checkpoints.
    """

    tool: Literal[
        "accelerate", "lightning", "mlflow", "neptune", "python", "tensorboard", "tinker", "trackio", "transformers",
        "wandb",
    ]  # fmt: skip
    source: str
    """Absolute path of the folder or database that was read last; of a recorded run, of its script; of a session, of
    the API's store."""
    tool_run_id: str
    """The run's id in that tool."""
    name: str
    """The run's name in that tool; the recipe's name is that of its experiment or project."""
    status: RunStatus
    """`unknown` if the tool recorded no end."""
    tool_status: str = ""
    """Status in the tool's words; empty if it has none."""
    tags: dict[str, str] = Field(default_factory=dict)
    started_s: float | None = None
    ended_s: float | None = None
    left_out: tuple[str, ...] = ()
    """Sentences on what is not known here: damaged parts of a source, values that are no numbers; of a recorded run,
    what its loop does not show."""

    def is_recorded(self) -> bool:
        """Return whether the training process recorded the run itself."""
        return self.tool in TRAINING_TOOLS


class ForkedFrom(Record):
    """The commit that a fork starts from."""

    run_id: Name
    step: NonNegativeInt
    weights_digest: str
    changes: dict[str, tuple[Any, Any]]
    """Recipe key to values in parent and fork."""

    def __str__(self) -> str:
        return f"{self.run_id}@{self.step}"


class ClusterOf(Record):
    """One of several clusters that train a recipe together (docs/outer.md)."""

    cluster: Name
    meeting_url: str
    """Store in which the clusters meet."""


class Run(Record):
    """One recipe on one dataset, over one or more attempts."""

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
    """Absolute local folder of metrics, logs and reports, and of the commits unless `store_url` differs. The
    file stores the folder at creation; opening a run replaces it by the current one (`store.run_location`)."""
    store_url: str
    num_steps: PositiveInt
    """Optimizer steps from the first to the last, as planned."""
    parent: ForkedFrom | None = None
    """None if it began with the recipe's starting weights."""
    is_drill: bool = False
    """Created by `assay train drill`. Reports on failures and time exclude it: its faults were planned."""
    folders: dict[str, str] = Field(default_factory=dict)
    """Recipe key -> SHA-256 of the weights and configuration in the checkpoint folder it names, at creation."""
    cluster_of: ClusterOf | None = None
    """Set for a run that trains its share of the lanes, and takes outer steps with other clusters."""
    imported: ImportedFrom | None = None
    """Set for a run of another tool: `recipe` then holds its name and parameters, `num_steps` its last step."""

    def is_recorded(self) -> bool:
        """Return whether another tool's training process recorded the run."""
        return self.imported is not None and self.imported.is_recorded()

    def trained_by(self) -> str:
        """Return the method that trained it, or the other tool."""
        method = self.recipe.get("method", {})
        return self.imported.tool if self.imported is not None else str(method.get("type", ""))

    def is_session(self) -> bool:
        """Return whether the run is a session of the Tinker API, whose client decides on each step."""
        return self.imported is not None and self.imported.tool == "tinker"

    def check_trained_here(self) -> None:
        """Raise `ConfigError` for a run of another tool, which has no recipe, dataset and receipts."""
        if self.is_session():
            raise ConfigError(
                f"run '{self.run_id}' is a session of the Tinker API: its client decides on each step, so it has no "
                "recipe, dataset or receipts. 'assay runs show', 'audit', 'replay' and 'export' read its requests."
            )
        if self.imported is not None and self.imported.is_recorded():
            raise ConfigError(
                f"run '{self.run_id}' was trained by {self.imported.source} ({self.imported.tool}) and recorded. It "
                "has no recipe, dataset or receipts to train, replay or predict by. A suite can evaluate its "
                f"checkpoints: 'assay eval work {self.run_id} --suite FILE'."
            )
        if self.imported is not None:
            raise ConfigError(
                f"run '{self.run_id}' was imported from {self.imported.tool}: it has metrics and parameters, but no "
                f"recipe, commits or receipts. 'assay runs show {self.run_id}' shows what it has."
            )


class Attempt(Record):
    """An attempt of a run, from the start of its ranks to the end of the last one."""

    run_id: str
    attempt: PositiveInt
    """From 1."""
    world_size: PositiveInt
    start_step: NonNegativeInt
    """Step of the commit it resumed from; 0 for a fresh start."""
    started_s: float
    ended_s: float | None = None
    """None while it runs."""
    end_step: NonNegativeInt | None = None
    """Step of its last commit, or `start_step` without one."""
    outcome: Literal["running", "succeeded", "failed", "preempted", "killed"] = "running"
    reason: str = ""
    """Why it ended, as text, e.g. `rank 1 was killed by SIGKILL`. `failure` has the structured facts."""
    failure: Failure | None = None
    """Cause of an early end; None if there is none."""
    folder: str
    """The run's folder at the time."""
    code_version: str
    """Version of assay, as in the run."""
    processor: Processor
    """Processor of all ranks."""
    environment: NodeEnvironment
    """Environment of the first node."""
    other_environments: dict[str, NodeEnvironment] = Field(default_factory=dict)
    """Host -> environment, for hosts that differ from the first node."""
    hosts: tuple[str, ...] = ()
    """Name of each rank's machine; empty before the ranks were started."""
    devices: tuple[str, ...] = ()
    """Device of each rank, e.g. `cuda:3`, known after the end; empty for a rank that died before it had one."""
    serials: tuple[str, ...] = ()
    """UUID of each rank's device, known after the end; empty for a CPU."""
    loads: tuple[PositiveInt, ...] = ()
    """Lanes per rank; empty with sharded weights."""
    suspects: tuple[Suspect, ...] = ()
    """Devices that a spot check found to compute wrongly."""
    stalled_s: NonNegativeFloat = 0.0
    """Duration of the hang that ended it."""

    def resume_command(self) -> str:
        """Return the command that resumes the run with as many ranks."""
        workers = f" --workers {self.world_size}" if self.world_size > 1 else ""
        return f"assay train --resume {self.run_id}{workers}"


def slower_command(run_id: str, recipe: Mapping[str, Any], *, step: int) -> str:
    """Return the command that retrains from step `step` (0: the start) at a lower learning rate."""
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


class Note(Record):
    """A note on a run."""

    at_s: float
    by: str
    text: str


class RunNotes(Record):
    """Tags and notes of a run."""

    run_id: str
    tags: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    """Oldest first."""
