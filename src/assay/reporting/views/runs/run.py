"""The view of one run: recipe, attempts, commits, costs, metrics, evaluation and audit, as `assay runs show` reports
them."""

from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np

from assay.base.shown_url import without_secrets
from assay.records.audit import AuditReport
from assay.records.commit import Commit, CommitQuarantined, LogEntry
from assay.records.devices import dense_bf16_flops
from assay.records.evaluation import AnyEvaluation
from assay.records.failure import Failure
from assay.records.goodput import useful_share
from assay.records.incident import IncidentKind
from assay.records.launch import Launch
from assay.records.phase import Phase
from assay.records.rollout_log import PromptCounts
from assay.records.run import Attempt, ForkedFrom, Note, PhaseSeconds, Run
from assay.records.suspect import Suspect
from assay.reporting.views.runs.clusters import ClustersView, clusters_view
from assay.reporting.views.runs.curve_window import metric_names
from assay.reporting.views.runs.run_list import RunHead, failure_kind
from assay.reporting.views.runs.samples import SampleView
from assay.reporting.views.runs.series import MAIN_NAMES, MAIN_PREFIXES
from assay.reporting.views.runs.session import SessionView, session_view
from assay.reporting.views.view import AsWritten, UtcTime, View
from assay.statistics.warnings import (
    FAILED,
    ONE_SCORE,
    WATCHED,
    ModelNumbers,
    RuleName,
    StepSeries,
    Warned,
    is_watched,
)
from assay.store.ledger.catch_up import catch_up
from assay.store.ledger.goodput import goodput_of
from assay.store.ledger.ledger import Ledger
from assay.store.ledger.summary import STEP_SECONDS, intact_commits, run_status, step_without_commits
from assay.store.metrics.curves import (
    Curve,
    events,
    last_sign_of_life_s,
    last_steps,
    metric_series,
    metric_summaries,
    outlined_series,
)
from assay.store.metrics.phases import running_phase_seconds
from assay.store.settings import NO_SETTINGS, Settings, cost_of

NEWEST_EVENTS, LISTED_METRICS = 20, 40
RECENT_STEPS = 50_000
"""The speed of a longer run is that of its last steps."""

DeviceSeconds = dict[Phase, float]


class AttemptView(View):
    """One attempt of a run."""

    attempt: int
    world_size: int
    started: UtcTime
    ended: UtcTime | None
    held_s: float | None
    """Wall-clock."""
    start_step: int
    """Commit that it resumed from, or 0."""
    end_step: int | None
    """Its last commit."""
    reached_step: int
    """Last computed, committed or not."""
    lost_steps: int
    """Rolled back."""
    outcome: Literal["running", "succeeded", "failed", "preempted", "killed"]
    reason: str
    failure: Annotated[Failure, AsWritten] | None
    hosts: tuple[str, ...]
    """By rank."""
    devices: tuple[str, ...]
    """By rank, e.g. `cuda:3`."""
    loads: tuple[int, ...]
    """Lanes of each rank; empty if the weights are sharded."""
    processor: str
    """Type and PyTorch version."""
    code_version: str
    suspects: tuple[Suspect, ...]
    """Devices that computed wrong results."""
    device_seconds: DeviceSeconds
    """Summed over ranks."""


class WarningView(View):
    """A warning; docs/operations.md lists the rules."""

    rule: RuleName
    text: str
    steps: tuple[int, ...] = ()


class CommitView(View):
    """A durable checkpoint."""

    step: int
    attempt: int
    world_size: int
    committed: UtcTime
    folder: str
    """In the run's store."""
    num_bytes: int
    weights_digest: str
    """Independent of the world size."""
    rows_trained: int
    """Since the previous one."""
    metric: float | None
    """The `keep_best` metric."""
    is_verified: bool
    """All ranks passed a spot check."""
    is_quarantined: bool
    """Corrupt, and never used again."""
    quarantine_reason: str
    is_retired: bool
    """Files deleted by the retention policy."""
    is_evaluated: bool
    """`flags` cover an evaluation."""
    adopted_from: str = ""
    """Folder of another tool's checkpoint."""
    flags: tuple[WarningView, ...]
    """At the time of the commit."""


class MetricSummaryView(View):
    """One metric of rank 0."""

    last_step: int
    last: float | None
    minimum: float | None
    maximum: float | None
    num_points: int
    num_nan: int


class SpeedView(View):
    """Throughput of kept steps, over all ranks; of a long run, in its last 50,000 steps."""

    steps_per_s: float
    rows_per_s: float | None
    tokens_per_s: float | None


class GpuUseView(View):
    """Use of rank 0's GPU in kept steps; of a long run, in its last 50,000 steps."""

    model_flops_per_s: float
    """Without padding and recomputed activations; see docs/gpu.md."""
    dense_flops_per_s: float | None
    """The card's bfloat16 rate; null if the card is not listed."""
    mfu: float | None
    """The first over the second."""
    memory_peak_bytes: int
    """Largest, of tensors."""
    host_waits: float | None
    """Waits of the host per step, in sampled steps."""


class EventView(View):
    """A log message of a rank."""

    at: UtcTime
    attempt: int
    rank: int
    text: str


class IncidentView(View):
    """An incident during the run."""

    at: UtcTime
    incident: IncidentKind
    """`fault` is of the fault plan. `repeated_failure` stopped the restarts. `other_code`: the version of assay
    changed.
    The last four are of sessions: an error as a result, a loss, ranks that were started again, and why it waits.
    """
    attempt: int
    rank: int | None
    step: int | None
    host: str
    text: str


class RunView(RunHead):
    """A run."""

    recipe: dict[str, Any]
    """Resolved."""
    recipe_sha256: str
    dataset_fingerprint: str
    code_version: str
    run_dir: str
    store_url: str
    weights_digest: str | None
    """For the last intact commit."""
    parent: Annotated[ForkedFrom, AsWritten] | None
    attempts: tuple[AttemptView, ...]
    launches: tuple[Annotated[Launch, AsWritten], ...]
    """Oldest first."""
    commits: tuple[CommitView, ...]
    """Oldest first, corrupt ones included."""
    device_seconds: DeviceSeconds
    """Held by training, over ranks and attempts; `lost`: rolled back."""
    evaluation_device_seconds: DeviceSeconds
    """Held by `assay eval work` and `assay eval run`."""
    cost: float | None
    """Training; prices: docs/settings.md."""
    evaluation_cost: float | None
    currency: str | None
    goodput: float | None
    """Share of training device time spent on kept steps."""
    lost_steps: int
    """Over all attempts."""
    prompts: Annotated[PromptCounts, AsWritten] | None
    """For committed steps."""
    speed: SpeedView | None
    gpu_use: GpuUseView | None = None
    """Null on CPUs."""
    metrics: dict[str, MetricSummaryView]
    """From rank 0."""
    num_metrics: int = 0
    """From rank 0; pages and the terminal show the main ones."""
    evaluation: Annotated[AnyEvaluation, AsWritten] | None
    """The last one."""
    audit: Annotated[AuditReport, AsWritten] | None
    """The last one."""
    warnings: tuple[WarningView, ...]
    incidents: tuple[IncidentView, ...]
    """The last twenty, newest last."""
    events: tuple[EventView, ...]
    """The last twenty, newest last."""
    notes: tuple[Annotated[Note, AsWritten], ...]
    """Oldest first."""
    samples: tuple[SampleView, ...] = ()
    """Completions of a run that trained on rewards."""
    clusters: ClustersView | None = None
    """Set for a run that takes outer steps with other clusters."""
    session: SessionView | None = None
    """Set for a session of the Tinker API."""

    def last_commit(self) -> CommitView | None:
        """Return the newest intact commit."""
        return next((commit for commit in reversed(self.commits) if not commit.is_quarantined), None)

    def shows_rows(self) -> bool:
        """Return whether receipts say which rows it trained on: of a recorded run, an audit of those of its loader."""
        return self.imported is None or (self.audit is not None and self.audit.epochs > 0)

    def audited_until(self) -> int | None:
        """Return the step of the last audit if later commits are not audited, else None."""
        last = self.last_commit()
        is_behind = self.audit and last and self.audit.step < last.step
        return self.audit.step if self.audit and is_behind else None

    def held_s(self) -> float:
        """Return the device seconds of training, over all ranks and attempts."""
        return sum(self.device_seconds.values())

    def evaluation_s(self) -> float:
        """Return the device seconds of evaluating commits."""
        return sum(self.evaluation_device_seconds.values())

    def reached_step(self) -> int:
        """Return the last step made, committed or not."""
        return max((attempt.reached_step for attempt in self.attempts), default=0)

    def left_s(self) -> float | None:
        """Return the remaining seconds at the speed so far; None if the run is over or has no speed."""
        if self.status not in ("running", "unknown") or self.speed is None:
            return None
        return max(0, self.total_steps - self.reached_step()) / self.speed.steps_per_s


def _open_phase_seconds(
    run: Run, attempts: Sequence[Attempt], accounted: set[int], seen_s: float | None
) -> Iterator[PhaseSeconds]:
    """Yield the device time of the attempts that have none on record, until the last sign of life.

    A session holds no device but while it executes requests, which its charges tell.
    """
    for attempt in () if run.is_session() else attempts:
        if attempt.attempt not in accounted and seen_s is not None:
            held_to_s = max(attempt.ended_s or seen_s, attempt.started_s)
            for rank in range(attempt.world_size):
                yield running_phase_seconds(run, attempt, rank, held_to_s=held_to_s)


def run_view(
    ledger: Ledger, run_id: str, settings: Settings = NO_SETTINGS, *, has_all_metrics: bool = False
) -> RunView:
    """Return the view of a run, given its id or the beginning of it. Reads the run's folder for news first.

    Without `has_all_metrics`, `metrics` holds the main ones and the first `LISTED_METRICS` by name.
    """
    run = ledger.run(run_id)
    catch_up(ledger, run)
    entries = ledger.log_entries(run.run_id)
    attempts = ledger.attempts(run.run_id)
    seen_s = last_sign_of_life_s(ledger, run.run_id)
    phases = [*ledger.phase_seconds(run.run_id)]
    phases += _open_phase_seconds(run, attempts, {phase.attempt for phase in phases}, seen_s)
    reached = last_steps(ledger, run.run_id, STEP_SECONDS if run.is_recorded() else "loss")
    attempt_views = tuple(_attempt(attempt, reached.get(attempt.attempt), phases) for attempt in attempts)
    intact = intact_commits(entries)
    finished = next((entry for entry in reversed(entries) if entry.type == "finished"), None)
    evaluations = ledger.evaluations(run.run_id)
    step = intact[-1].step if intact else step_without_commits(ledger, run, attempts)
    launches = ledger.launches(run.run_id)
    annotations = next(iter(ledger.run_notes(run.run_id)), None)
    model_metrics = model_numbers(ledger, run.run_id)
    status = run_status(
        attempts,
        created_s=run.created_s,
        is_finished=finished is not None,
        launch=launches[-1] if launches else None,
        last_seen_s=seen_s,
        imported=run.imported,
    )
    return RunView.of(
        run,
        name=run.recipe.get("name"),
        store_url=without_secrets(run.store_url),
        status=status,
        failure_kind=failure_kind(status, attempts),
        created=run.created_s,
        step=step,
        total_steps=max(finished.step if finished else run.num_steps, step),
        weights_digest=intact[-1].weights_digest if intact else None,
        world_sizes=tuple(attempt.world_size for attempt in attempts),
        attempts=attempt_views,
        launches=tuple(launches),
        commits=commit_views(entries, model_metrics),
        **_costs(settings, attempts, phases),
        lost_steps=sum(attempt_view.lost_steps for attempt_view in attempt_views),
        prompts=_prompts(intact),
        speed=_speed(ledger, run.run_id),
        gpu_use=_gpu_use(ledger, run.run_id, attempts),
        **_metrics(ledger, run.run_id, has_all_metrics=has_all_metrics),
        evaluation=evaluations[-1] if evaluations else None,
        audit=ledger.audit(run.run_id),
        warnings=_warning_views(model_metrics.warnings()),
        incidents=tuple(
            IncidentView.of(incident, at=incident.at_s) for incident in ledger.incidents(run.run_id)[-NEWEST_EVENTS:]
        ),
        events=tuple(EventView.of(event, at=event.at_s) for event in events(ledger, run.run_id)[-NEWEST_EVENTS:]),
        last_seen=seen_s,
        tags=annotations.tags if annotations else (),
        notes=annotations.notes if annotations else (),
        samples=(),
        clusters=clusters_view(run.cluster_of, goodput_of(ledger, [run], settings)) if run.cluster_of else None,
        session=session_view(Path(run.run_dir)) if run.is_session() else None,
    )


def _metrics(ledger: Ledger, run_id: str, *, has_all_metrics: bool) -> dict[str, Any]:
    listed = metric_names(ledger, run_id, limit=LISTED_METRICS)
    names = None if has_all_metrics else (*listed.names, *MAIN_NAMES)
    summaries = metric_summaries(ledger, run_id, names, prefixes=MAIN_PREFIXES)
    metrics = {summary.name: MetricSummaryView.of(summary, last=summary.last_value) for summary in summaries}
    return {"metrics": metrics, "num_metrics": listed.num_names}


def _costs(settings: Settings, attempts: Sequence[Attempt], phases: Sequence[PhaseSeconds]) -> dict[str, Any]:
    """Return the costs of training and, separately, of evaluation."""
    trained, evaluated = (
        [phase for phase in phases if phase.attempt],
        [phase for phase in phases if not phase.attempt],
    )
    cost, evaluation_cost = (cost_of(settings, attempts, seconds_by_rank) for seconds_by_rank in (trained, evaluated))
    return {
        "device_seconds": (seconds := device_seconds(trained)),
        "evaluation_device_seconds": device_seconds(evaluated),
        "cost": cost.amount if cost else None,
        "evaluation_cost": evaluation_cost.amount if evaluation_cost else None,
        "currency": cost.currency if cost else None,
        "goodput": useful_share(seconds),
    }


def _prompts(commits: Sequence[Commit]) -> PromptCounts | None:
    counts = [commit.prompts for commit in commits if commit.prompts is not None]
    return reduce(PromptCounts.plus, counts) if counts else None


def model_numbers(ledger: Ledger, run_id: str) -> ModelNumbers:
    """Return the metrics that the warning rules read."""
    read = metric_summaries(ledger, run_id, ("loss", "gradient_norm", *WATCHED), prefixes=(FAILED,))
    names = [summary.name for summary in read]
    curves = {
        name: outlined_series(ledger, run_id, name)
        for name in names
        if name in ("loss", "gradient_norm", ONE_SCORE) or (FAILED in names and is_watched(name))
    }
    series = {name: StepSeries(curve.steps, curve.values) for name, curve in curves.items()}
    losses = series.pop("loss", StepSeries.of({}))
    failures = [attempt.failure for attempt in ledger.attempts(run_id)[-1:]]
    ends_finite = all(failure is None or failure.failure_kind != "loss_not_finite" for failure in failures)
    return ModelNumbers(losses, series, ledger.evaluations(run_id), ends_finite)


def commit_views(entries: Sequence[LogEntry], model_metrics: ModelNumbers) -> tuple[CommitView, ...]:
    """Return the commits of a run's log, each with the warnings at the time."""
    quarantined = {entry.folder: entry.reason for entry in entries if isinstance(entry, CommitQuarantined)}
    evaluated = {evaluation.step for evaluation in model_metrics.evaluations}
    retired = {folder for entry in entries if isinstance(entry, Commit) for folder in entry.retires}
    return tuple(
        CommitView.of(
            entry,
            committed=entry.committed_s,
            num_bytes=sum(file.num_bytes for file in entry.files),
            is_quarantined=entry.folder in quarantined,
            quarantine_reason=quarantined.get(entry.folder, ""),
            is_retired=entry.folder in retired,
            is_evaluated=entry.step in evaluated,
            flags=_warning_views(model_metrics.warnings_at(entry.step)),
        )
        for entry in entries
        if isinstance(entry, Commit)
    )


def device_seconds(parts: Sequence[PhaseSeconds]) -> DeviceSeconds:
    """Return seconds summed over ranks and attempts, with a key for every phase."""
    return {phase: sum(part.seconds.get(phase, 0.0) for part in parts) for phase in get_args(Phase)}


def _warning_views(warned: Sequence[Warned]) -> tuple[WarningView, ...]:
    return tuple(map(warning_view, warned))


def warning_view(warned: Warned) -> WarningView:
    """Return a warning with its sentence."""
    from assay.reporting.views.warnings import warning_text  # here, for most runs have none

    return WarningView(rule=warned.rule, text=warning_text(warned), steps=warned.steps)


def _attempt(attempt: Attempt, reached: int | None, phases: Sequence[PhaseSeconds]) -> AttemptView:
    committed_step = attempt.start_step if attempt.end_step is None else attempt.end_step
    return AttemptView.of(
        attempt,
        started=attempt.started_s,
        processor=str(attempt.processor),
        ended=attempt.ended_s,
        held_s=None if attempt.ended_s is None else attempt.ended_s - attempt.started_s,
        reached_step=max(reached or 0, committed_step),
        lost_steps=max(0, (reached or 0) - committed_step) if attempt.ended_s is not None else 0,
        device_seconds=device_seconds([phase for phase in phases if phase.attempt == attempt.attempt]),
    )


def _speed(ledger: Ledger, run_id: str) -> SpeedView | None:
    seconds, rows, tokens = (_recent(ledger, run_id, name).values for name in ("step_s", "rows", "tokens"))
    if not (spent_s := float(seconds.sum())) > 0:
        return None
    rows_per_s, tokens_per_s = (
        float(counted.sum()) / spent_s if len(counted) == len(seconds) else None for counted in (rows, tokens)
    )
    return SpeedView(steps_per_s=len(seconds) / spent_s, rows_per_s=rows_per_s, tokens_per_s=tokens_per_s)


def _recent(ledger: Ledger, run_id: str, name: str) -> Curve:
    """Return the committed points of a metric in the last `RECENT_STEPS` steps."""
    last_step = max(last_steps(ledger, run_id, name).values(), default=0)
    return metric_series(ledger, run_id, name, x0=last_step - RECENT_STEPS, max_points=2 * RECENT_STEPS)


def _gpu_use(ledger: Ledger, run_id: str, attempts: Sequence[Attempt]) -> GpuUseView | None:
    step_s, flops, waits = (_recent(ledger, run_id, name) for name in ("step_s", "model_flops", "host_waits"))
    if not len(flops.values):
        return None
    peaks = outlined_series(ledger, run_id, "gpu_memory_peak_bytes")
    spent_s = step_s.values[np.isin(step_s.steps, flops.steps)].sum()
    flops_per_s = float(flops.values.sum() / spent_s)
    processor = attempts[-1].processor
    dense_flops = None if processor is None else dense_bf16_flops(processor.model)
    return GpuUseView(
        model_flops_per_s=flops_per_s,
        dense_flops_per_s=dense_flops,
        mfu=None if dense_flops is None else flops_per_s / dense_flops,
        memory_peak_bytes=int(peaks.values.max(initial=0)),
        host_waits=float(waits.values.mean()) if len(waits.values) else None,
    )
