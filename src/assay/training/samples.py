"""The training samples of a step, and where they come from.

    dataset rows --DatasetRows--> the same rows
    prompts      --Rollouts-----> completions that the model generates (`rollouts.source`)

The trainer collects the samples of each step from a `SampleSource` and does not know which one it is.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from assay.data.loader.batch import LaneShare, StepShare
from assay.records.rollout_log import GroupRecord
from assay.training.checkpoint.parts import StatefulPart
from assay.training.numerics import MetricSum

SampleLog = tuple[GroupRecord, ...]
"""One entry for each row that samples were generated for."""


class StepCancelledError(Exception):
    """A rank received SIGTERM while samples were collected, so all ranks cancel the step."""


class LaneSamples(NamedTuple):
    """The training samples of one lane in one step."""

    lane: LaneShare
    """The lane's micro-batches."""
    metrics: Mapping[str, MetricSum] = MappingProxyType({})
    """Metrics over all that was generated, of which the samples may be a part."""
    digest: int = 0
    """Digest of all that was generated; 0 for dataset rows."""
    log: SampleLog | None = None
    """None for dataset rows."""


class SampleSource(Protocol):
    """Provides the training samples of steps; all ranks call the same methods in the same steps."""

    @property
    def updates_per_step(self) -> int:
        """Optimizer updates from the samples of one step."""
        ...

    @property
    def lookahead(self) -> int:
        """Steps whose rows are needed ahead."""
        ...

    @property
    def costs(self) -> Mapping[str, float] | None:
        """Costs of the last `collect` in this process, by metric name; None if samples cost nothing."""
        ...

    @property
    def parts(self) -> Mapping[str, StatefulPart]:
        """State that a commit must hold."""
        ...

    def collect(self, share: StepShare, *, step: int) -> list[LaneSamples]:
        """Return the training samples of this rank's lanes in optimizer step `step`.

        Raises `StepCancelledError` on all ranks if one of them received SIGTERM meanwhile.
        """
        ...

    def recollect(self, lane: LaneShare, *, step: int) -> LaneShare:
        """Return the samples of one lane, maybe another rank's, whose step was collected before."""
        ...

    def recollect_further(self, lane: LaneShare) -> list[int]:
        """Compute what `lane.further_digests` are digests of once more; return these digests."""
        ...

    def for_recomputation(self, share: StepShare, *, step: int) -> StepShare:
        """Return the share with all that another rank needs to recompute its lanes."""
        ...

    def check(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Raise if a step with these metrics must not become an update; all ranks see the same numbers."""
        ...

    def release(self, *, step: int) -> None:
        """Discard what was retained for step `step`, which has been trained."""
        ...


class DatasetRows:
    """The dataset's rows as they are."""

    updates_per_step = 1
    lookahead = 0
    costs = None
    parts: Mapping[str, StatefulPart] = MappingProxyType({})

    def collect(self, share: StepShare, *, step: int) -> list[LaneSamples]:  # noqa: ARG002
        return [LaneSamples(lane) for lane in share.lanes]

    def recollect(self, lane: LaneShare, *, step: int) -> LaneShare:  # noqa: ARG002
        return lane

    def recollect_further(self, lane: LaneShare) -> list[int]:  # noqa: ARG002
        return []

    def for_recomputation(self, share: StepShare, *, step: int) -> StepShare:  # noqa: ARG002
        return share

    def check(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Accept every step."""

    def release(self, *, step: int) -> None:
        """Do nothing: rows are not retained."""
