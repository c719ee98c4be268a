"""Trains the due runs of a campaign or pipeline, several concurrently, with any launcher.

    (arm, seed) --> its run --+-- finished ----------------> yielded
                              +-- queued, running ---------> waited for, whoever started it
                              +-- started, but dead -------> its device time is recorded, and it is resumed
                              +-- not started, in budget --> started

No state is only in memory: a run's commit log, attempts and launches determine its status. A campaign that was
killed at any point continues when it is run again; no run is trained twice, and none is lost. A run's id is derived
from (campaign, arm, seed), so its run is found again.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from assay.base.clock import Clock, SystemClock
from assay.base.config import LoadedConfig
from assay.base.errors import ConfigError, Interrupted, StoreFullError, TrainingError
from assay.base.units import duration_text
from assay.decision.candidate import patched
from assay.elastic.supervisor import RestartPolicy, RunObserver
from assay.launchers.launcher import Launcher, LaunchState
from assay.launchers.launches import last_launch, state_of
from assay.launchers.local import launched_here
from assay.records.campaign import run_id_of
from assay.records.launch import Launch
from assay.records.run import Attempt, Run
from assay.store.attempts import saved_attempts
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.ledger.ledger import Ledger
from assay.store.metrics.phases import rank_phase_seconds
from assay.store.metrics.segment import read_segment, segment_path
from assay.store.objects import open_store
from assay.store.run_location import reject_links
from assay.store.run_results import keep_audit
from assay.training.audit import audit_run
from assay.training.recipe import recipe_of, recipe_sha256
from assay.workflows.bookkeeping import rebuild_run, writer_of
from assay.workflows.campaign.elsewhere import is_trained, recorded_run, run_command, run_of_command
from assay.workflows.campaign.folder import OpenCampaign
from assay.workflows.guards import heed_guards
from assay.workflows.run import check_recipe, create_run, load_run
from assay.workflows.train import evaluate_run, train_run

MAX_LAUNCHES = 3
"""Give a run up after this many consecutive launches without a commit."""

ObserverFactory = Callable[[Run], RunObserver]


class InProcessLauncher:
    """A launcher that trains in this process: a run has ended when `start` returns."""

    def __init__(self, home: Home, make_observer: ObserverFactory, clock: Clock, *, of: str = "campaign") -> None:
        """`make_observer` creates the progress display of a run; `of` is the command to repeat after Ctrl-C."""
        self._home = home
        self._make_observer = make_observer
        self._clock = clock
        self._of = of

    def start(self, run: Run, *, world_size: int) -> Launch:
        launch = launched_here(run, world_size=world_size)
        with writer_of(self._home, run) as writer, _explain_restart(self._of):
            result = train_run(
                self._home,
                run,
                writer,
                world_size=world_size,
                policy=RestartPolicy(),
                observers=[self._make_observer(run)],
                clock=self._clock,
            )
        if result.error is not None:
            raise result.error
        return last_launch(run) or launch


@contextmanager
def _explain_restart(whole: str) -> Iterator[None]:
    """Add to the message of Ctrl-C how to continue the whole campaign or pipeline."""
    try:
        yield
    except Interrupted as interrupt:
        raise Interrupted(f"{interrupt}\nor run the {whole} again: it continues from here") from None


class ExecutionSettings(NamedTuple):
    """How runs are launched, and how many concurrently."""

    launcher: Launcher
    runs_at_once: int = 1
    clock: Clock = SystemClock()
    state_of: Callable[[Launch], LaunchState] = state_of
    poll_s: float = 0.5
    host: str | None = None
    """Host that trains; None if a scheduler chooses it."""
    warn: Callable[[str], None] = lambda text: None
    """Receives the warnings of guards."""


class ArmPlan(NamedTuple):
    """The runs to train, one for each arm and seed; each is created when it is due."""

    home: Home
    owner: str
    """`campaign` or `pipeline`, for messages."""
    name: str
    names: tuple[str, ...]
    """Arms, or stages; the first one's cost is the estimate for arms without finished runs."""
    seeds: tuple[int, ...]
    workers: int
    budget_device_hours: float | None
    """None: no limit."""
    run_of: Callable[[str, int], Run]
    """(arm, seed) -> the run's record, created if needed."""
    run_command: Callable[[str, int], Run] | None = None
    """Trains the run of an arm with a command here."""

    def run_id(self, arm: str, seed: int) -> str:
        return run_id_of(self.name, arm, seed)


def campaign_arm_plan(campaign: OpenCampaign) -> ArmPlan:
    """Return the runs of a campaign."""
    config = campaign.config
    return ArmPlan(
        home=campaign.home,
        owner="campaign",
        name=config.name,
        names=config.arm_names,
        seeds=config.seed_numbers,
        workers=config.workers,
        budget_device_hours=config.budget_device_hours,
        run_of=partial(arm_run, campaign),
        run_command=partial(run_command, campaign),
    )


def arm_run(campaign: OpenCampaign, arm: str, seed: int) -> Run:
    """Return the run's record, created if needed. Raises `ConfigError` if a run exists with another recipe."""
    config, run_id = campaign.config, campaign.config.run_id(arm, seed)
    if config.arm(arm).runs:
        return recorded_run(campaign.home, run_id, of=f"arm '{arm}'")
    if not config.has_recipe(arm):
        return run_of_command(campaign, arm, seed)
    patch = {} if arm == config.baseline else config.candidate(arm).patch
    recipe = patched(campaign.recipe, patch, arm=arm, seed=seed)
    of = f"arm '{arm}' of campaign '{config.name}'"
    return ensure_run(campaign.home, recipe, run_id=run_id, workers=config.workers, of=of, owner="campaign")


def ensure_run(home: Home, recipe: LoadedConfig, *, run_id: str, workers: int, of: str, owner: str) -> Run:
    """Return the record of a run, created if needed. Raises `ConfigError` if it exists with another recipe;
    `of` and `owner` name the arm and its campaign or pipeline in the message."""
    if not home.has_run(run_id):
        return create_run(home, recipe, world_size=workers, run_id=run_id)
    run = load_run(home, run_id)
    requested_recipe, dataset = check_recipe(recipe)
    requested, found = (item.model_dump(mode="json") for item in (requested_recipe, recipe_of(run)))
    if recipe_sha256(requested, dataset.fingerprint) != recipe_sha256(found, run.dataset_fingerprint):
        raise ConfigError(
            f"run '{run_id}' exists with another recipe than {of} has. Rename the {owner}, or remove the run's folder."
        )
    return run


class ArmRun(NamedTuple):
    """The run of an arm with one seed."""

    arm: str
    seed: int
    run: Run


class _PendingRun(NamedTuple):
    """A run that is queued or training."""

    arm_run: ArmRun
    launch: Launch
    num_before: int
    """Number of attempts before this launch."""
    num_launches: int = 1

    def last_attempt(self) -> Attempt | None:
        """Return the launch's last attempt; None before it starts one."""
        attempts = saved_attempts(Path(self.arm_run.run.run_dir))
        return attempts[-1] if len(attempts) > self.num_before else None


class CampaignStopped(Exception):  # noqa: N818 (an event, not an error)
    """Raised when the campaign ends early: the budget is used up, or a run was asked to stop."""


class ArmScheduler:
    """Trains the runs of a campaign or pipeline."""

    def __init__(self, plan: ArmPlan, ledger: Ledger, execution: ExecutionSettings) -> None:
        self._plan = plan
        self._ledger = ledger
        self._execution = execution
        self._costs: dict[str, list[float]] = {}
        self._final_s: dict[str, float] = {}
        self._pending: list[_PendingRun] = []

    def finish(self, due: Sequence[tuple[str, int]]) -> Iterator[ArmRun]:
        """Yield each run once it is finished, evaluated and audited; runs start in the order of `due`.

        Raises `CampaignStopped` once the runs that had started have ended.
        """
        waiting, refusal = list(due), None
        while waiting or self._pending:
            while waiting and len(self._pending) < self._execution.runs_at_once:
                arm, seed = waiting.pop(0)
                arm_run = ArmRun(arm, seed, self._plan.run_of(arm, seed))
                # Check the launch before the log: a run that ends in between is finished, not dead.
                if (found := self._find_pending(arm_run)) is not None:
                    self._pending.append(found)
                elif is_trained(arm_run.run):
                    yield self._finish(arm_run)
                elif (refusal := self._budget_refusal(arm_run)) is not None:
                    waiting = []
                elif arm_run.run.is_recorded() and self._plan.run_command is not None:
                    yield self._finish(arm_run._replace(run=self._plan.run_command(arm, seed)))
                else:
                    self._pending.append(self._start(arm_run))
            ended = [pending for pending in self._pending if self._execution.state_of(pending.launch) == "ended"]
            for pending in ended:
                self._pending.remove(pending)
                if is_trained(pending.arm_run.run):
                    yield self._finish(pending.arm_run)
                elif pending.arm_run.run.is_recorded():
                    waiting.insert(0, pending.arm_run[:2])
                else:
                    self._pending.append(self._restart(pending))
            if self._pending and not ended:
                self._execution.clock.sleep_s(self._execution.poll_s)
        if refusal is not None:
            raise CampaignStopped(refusal)

    def _find_pending(self, arm_run: ArmRun) -> _PendingRun | None:
        """Return the pending launch of a run, whoever started it; None if there is none."""
        run, launch = arm_run.run, last_launch(arm_run.run)
        if launch is None or (run.is_recorded() and is_trained(run)):
            return None
        state = self._execution.state_of(launch)
        if state in ("queued", "running"):
            ended = [attempt for attempt in saved_attempts(Path(run.run_dir)) if attempt.ended_s is not None]
            return _PendingRun(arm_run, launch, num_before=len(ended))
        if state == "elsewhere" and not _has_ended(run):
            raise ConfigError(
                f"run '{run.run_id}' was started as {launch.where()}, and this machine cannot see whether it "
                f"runs. Run the {self._plan.owner} there; or, if that machine is gone, 'assay train "
                f"--resume {run.run_id}' here, and the {self._plan.owner} after it."
            )
        return None

    def _start(self, arm_run: ArmRun, *, num_launches: int = 1) -> _PendingRun:
        reject_links(Path(arm_run.run.run_dir))
        settle(arm_run.run, self._ledger)
        num_before = len(saved_attempts(Path(arm_run.run.run_dir)))
        workers = self._plan.workers
        for warning in heed_guards(self._plan.home, arm_run.run, world_size=workers, host=self._execution.host):
            self._execution.warn(f"warning: {warning}. 'assay triage guard' lists all.")
        launch = self._execution.launcher.start(arm_run.run, world_size=self._plan.workers)
        self._ledger.record_run(arm_run.run)
        self._ledger.record_launch(launch)
        return _PendingRun(arm_run, launch, num_before, num_launches)

    def _restart(self, pending: _PendingRun) -> _PendingRun:
        """Restart a run whose launch ended early, unless it was asked to stop or cannot succeed."""
        run, launch, last = pending.arm_run.run, pending.launch, pending.last_attempt()
        if last is not None and last.outcome == "preempted":
            raise CampaignStopped(
                f"run {run.run_id} was asked to stop; it committed, and continues when the "
                f"{self._plan.owner} is run again"
            )
        commits = _log_of(run).commits()
        num_launches = (
            1 if last is not None and commits and commits[-1].attempt >= last.attempt else pending.num_launches + 1
        )
        if num_launches > MAX_LAUNCHES or (
            last is not None and last.outcome == "failed" and not _failed_by_store(last)
        ):
            why = last.reason if last is not None else "it ended before its first attempt"
            is_full = last is not None and last.failure is not None and last.failure.failure_kind == "disk_full"
            raise (StoreFullError if is_full else TrainingError)(
                f"run {run.run_id}, started as {launch.where()}: {why}. What it printed is in "
                f"{launch.log or 'the terminal'}. Its commits are intact: fix the cause and run it again."
            )
        return self._start(pending.arm_run, num_launches=num_launches)

    def _finish(self, arm_run: ArmRun) -> ArmRun:
        """Complete a finished run: add an evaluation or audit that its launch did not get to."""
        run = arm_run.run
        self._costs.setdefault(arm_run.arm, []).append(self._held_s(run))
        if not run.is_recorded() and not self._ledger.evaluations(run.run_id):
            self._ledger.record_evaluation(evaluate_run(run, _log_of(run)))
        if not run.is_session() and self._ledger.audit(run.run_id) is None:
            keep_audit(self._ledger, run.run_dir, audit_run(run, _log_of(run)))
        return arm_run

    def _held_s(self, run: Run) -> float:
        """Return the device time of a run so far, by its folder, because the ledger may have missed facts."""
        if run.run_id in self._final_s:
            return self._final_s[run.run_id]
        rebuild_run(self._ledger, run)
        if _log_of(run).finished() is None:
            return device_seconds_of(run.run_id, self._ledger)
        settle(run, self._ledger)
        self._final_s[run.run_id] = held_s = device_seconds_of(run.run_id, self._ledger)
        return held_s

    # The budget

    def _budget_refusal(self, arm_run: ArmRun) -> str | None:
        """Return why the budget does not allow a run to start; None if it may. Started runs may finish."""
        if _is_started(arm_run.run):
            return None
        budget_s = (self._plan.budget_device_hours or math.inf) * 3600
        spent_s, expected_s = self._committed_s(), self._expected_s(arm_run.arm)
        if spent_s + expected_s <= budget_s:
            return None
        return (
            f"the budget of {duration_text(budget_s)} device time is used up: {duration_text(spent_s)} are "
            f"spent or committed to started runs, and {arm_run.arm} with seed {arm_run.seed} takes about "
            f"{duration_text(expected_s)}. Raise budget_device_hours and run the {self._plan.owner} again: "
            "it continues from here"
        )

    def _committed_s(self) -> float:
        """Return the device time of all runs so far; for an unfinished run at least its expected total."""
        bound_s = 0.0
        for arm in self._plan.names:
            for seed in self._plan.seeds:
                run_id = self._plan.run_id(arm, seed)
                if not self._plan.home.has_run(run_id):
                    continue
                run = self._plan.home.run(run_id)
                held_s = self._held_s(run)
                if not is_trained(run) and _is_started(run):
                    held_s = max(held_s + self._running_s(run), self._expected_s(arm))
                bound_s += held_s
        return bound_s

    def _expected_s(self, arm: str) -> float:
        """Return the mean cost of the arm's finished runs, else of the first arm's."""
        costs = self._costs.get(arm) or self._costs.get(self._plan.names[0]) or []
        return sum(costs) / len(costs) if costs else 0.0

    def _running_s(self, run: Run) -> float:
        now_s = self._execution.clock.now_s()
        running = [attempt for attempt in saved_attempts(Path(run.run_dir)) if attempt.ended_s is None]
        return sum((now_s - item.started_s) * item.world_size for item in running[-1:])


def device_seconds_of(run_id: str, ledger: Ledger) -> float:
    """Return the device time of training a run over all ranks, by its attempts in the ledger."""
    return sum(second.held_s for second in ledger.training_seconds(run_id))


def settle(run: Run, ledger: Ledger) -> None:
    """Record the device time of attempts whose supervisor died before it could, up to the last sign of life of
    each rank.

    Only for runs without a live supervisor. An attempt without metrics costs nothing that can be known.
    """
    attempts_on_record = {second.attempt for second in ledger.phase_seconds(run.run_id)}
    commits = CommitLog(open_store(run.store_url)).commits()
    for attempt in saved_attempts(Path(run.run_dir)):
        if attempt.attempt in attempts_on_record:
            continue
        ledger.record_attempt(attempt)
        for rank in range(attempt.world_size):
            path = segment_path(Path(run.run_dir), attempt.attempt, rank)
            segment = read_segment(path) if path.exists() else None
            if segment is None or segment.header is None or not len(segment.phase_changes.at_s):
                continue
            seen_s = float(segment.header.wall_of(segment.phase_changes.at_s)[-1])
            ledger.record_phase_seconds(
                rank_phase_seconds(
                    run,
                    attempt,
                    rank,
                    held_to_s=max(seen_s, attempt.started_s),
                    committed_step=max([attempt.start_step, *(commit.step for commit in commits)]),
                )
            )


def _log_of(run: Run) -> CommitLog:
    return CommitLog(open_store(run.store_url))


def _is_started(run: Run) -> bool:
    return bool(saved_attempts(Path(run.run_dir))) or last_launch(run) is not None


def _failed_by_store(attempt: Attempt) -> bool:
    """Return whether the attempt failed because the store was unreachable, which may pass."""
    return attempt.failure is not None and attempt.failure.failure_kind == "store_unreachable"


def _has_ended(run: Run) -> bool:
    """Return whether the last attempt ended in a way that also ends its supervisor."""
    attempts = saved_attempts(Path(run.run_dir))
    return bool(attempts) and attempts[-1].outcome in ("preempted", "failed", "succeeded")
