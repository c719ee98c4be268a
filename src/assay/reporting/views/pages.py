"""What a page is made of: records, and the series that plots draw. Plain values, so a test can make them up."""

from collections.abc import Sequence
from dataclasses import dataclass

from assay.evaluation.evidence.classifier.compare import SliceDifference
from assay.evaluation.evidence.classifier.curves import RocCurve, ScoreHistogram
from assay.records.audit import AuditReport
from assay.records.commit import Commit, CommitQuarantined
from assay.records.evaluation import AucComparison, ClassifierEvaluation
from assay.records.run import Attempt, PhaseSeconds, Run, RunStatus


@dataclass(frozen=True)
class Series:
    """A metric over steps, in order of time: where an attempt died, steps may be there twice."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    is_lost: Sequence[bool] = ()
    """Points of steps that were rolled back; empty where there are none."""


@dataclass(frozen=True)
class RunPage:
    """One run."""

    run: Run
    status: RunStatus
    attempts: Sequence[Attempt]
    commits: Sequence[Commit]
    quarantined_commits: Sequence[CommitQuarantined]
    phases: Sequence[PhaseSeconds]
    reached_steps: dict[int, int]
    """Attempt -> the last step that it made, committed or not."""
    loss: Series | None
    throughput: Series | None
    """Tokens per second, over all ranks."""
    rows_per_second: float | None
    """Rows of the whole run over the seconds spent in their steps."""
    validation_auc: Series | None
    evaluation: ClassifierEvaluation | None
    audit: AuditReport | None
    roc: RocCurve | None
    histogram: ScoreHistogram | None

    def last_commit(self) -> Commit | None:
        """The newest durable state that was not found damaged."""
        damaged = {each.folder for each in self.quarantined_commits}
        return next((each for each in reversed(self.commits) if each.folder not in damaged), None)

    def device_seconds(self) -> dict[str, float]:
        """Device time by phase, over all ranks and attempts."""
        total: dict[str, float] = {}
        for each in self.phases:
            for phase, seconds in each.seconds.items():
                total[phase] = total.get(phase, 0.0) + seconds
        return total

    def held_s(self) -> float:
        """Device time in all, seconds over all ranks and attempts."""
        return sum(self.device_seconds().values())

    def world_sizes(self) -> list[int]:
        """One per attempt, in order."""
        return [attempt.world_size for attempt in self.attempts]


@dataclass(frozen=True)
class ComparedRun:
    """A run beside the baseline."""

    page: RunPage
    comparison: AucComparison
    slices: Sequence[SliceDifference]


@dataclass(frozen=True)
class ComparisonPage:
    """A baseline and its candidates."""

    baseline: RunPage
    candidates: Sequence[ComparedRun]
