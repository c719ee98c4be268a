"""Runs a ladder step by step: the base at its rungs, each change on the newest known-good config, then all together.

    base            rungs r1 < r2 < ..      each in the band of the smaller ones, else the ladder stops
    change 1        campaign at each rung that tries changes, campaign at the own size --> gates --> adopt, keep out,
    change 2        on what is known good now                                              roll back or stop
    ..
    together        base, each adopted change alone, all of them: do the gains add up? (together.py)

A step that is over has a record; everything before it follows from the records of campaigns and runs. A ladder that was
killed at any point therefore continues when it is run again, and ends with the same steps.
"""

from collections.abc import Callable, Iterator, Sequence

from assay.base.errors import TrainingError
from assay.base.units import duration_text
from assay.decision.candidate import patched
from assay.records.decision import Clause
from assay.records.ladder import BASE_STEP, OWN_SIZE, TOGETHER_STEP, LadderStep, LadderTrial
from assay.records.run import Run
from assay.statistics.scaling.from_runs import points_of_runs
from assay.statistics.scaling.points import ScalingPoints, read_points
from assay.store.ledger.ledger import Ledger
from assay.workflows.campaign.campaign import run_campaign
from assay.workflows.campaign.evidence import Scoring
from assay.workflows.campaign.folder import LoadedCampaign, OpenCampaign, declare
from assay.workflows.campaign.train import (
    ArmPlan,
    ArmScheduler,
    CampaignStopped,
    ExecutionSettings,
    device_seconds_of,
    ensure_run,
)
from assay.workflows.ladder.config import LEAST_RUNGS
from assay.workflows.ladder.folder import OpenLadder
from assay.workflows.ladder.gates import (
    code_length_clause,
    gain_clause,
    is_not_finite,
    loss_band_clause,
    step_time_clause,
    warnings_clause,
)
from assay.workflows.ladder.rule import action_of, next_error_rate
from assay.workflows.ladder.together import interaction_clause

OnMessage = Callable[[str], None]


class LadderRun:
    """Trains and decides the steps of a declared ladder."""

    def __init__(self, ladder: OpenLadder, ledger: Ledger, execution: ExecutionSettings, on_message: OnMessage) -> None:
        self._ladder = ladder
        self._ledger = ledger
        self._execution = execution
        self._on_message = on_message

    def run(self) -> str | None:
        """Take the steps that are left. Return why the ladder ended before its last one without a verdict (the budget,
        a request to stop); None if it is over, which a step with the action `stop` may be the reason of."""
        try:
            for name in self._ladder.config.steps:
                step = self._ladder.step(name) or self._ladder.keep(self._take(name))
                self._on_message(f"step {name}: {step.action}")
                if step.action == "stop":
                    break
        except CampaignStopped as stopped:
            return str(stopped)
        return None

    def _take(self, name: str) -> LadderStep:
        assert self._ladder.record is not None, "the ladder is declared"
        error_rate = 0.0
        if name == BASE_STEP:
            trials = tuple(self._base_trials())
        elif name == TOGETHER_STEP:
            trials = tuple(self._together_trials())
        else:
            error_rate = self._error_rate()
            trials = tuple(self._change_trials(name, error_rate))
        return LadderStep(
            ladder_sha256=self._ladder.record.digest(),
            step=name,
            action=action_of(name, trials),
            error_rate=error_rate,
            trials=trials,
        )

    def _error_rate(self) -> float:
        """Return the error that the next change may spend."""
        config = self._ladder.config
        adopted = [step.action == "adopt" for step in self._ladder.steps() if step.step != BASE_STEP]
        return next_error_rate(1.0 - config.rule.confidence, len(config.changes), adopted)

    def _budget_left(self, without: str) -> float:
        """Return the device-hours that a campaign, or by the ladder's name the rungs, may spend: what all others left.
        Raises `CampaignStopped` if that is nothing."""
        spent_s = sum(device_seconds_of(run_id, self._ledger) for run_id in self._ladder.run_ids(without=without))
        if spent_s >= (budget_s := 3600.0 * self._ladder.config.budget_device_hours):
            raise CampaignStopped(
                f"the budget of {duration_text(budget_s)} device time is used up. Raise budget_device_hours and run "
                "the ladder again: it continues from here"
            )
        return (budget_s - spent_s) / 3600.0

    # The base at its rungs

    def _base_trials(self) -> Iterator[LadderTrial]:
        """Train the base at each rung, the smallest first, and judge its loss; end with the first that fails."""
        ladder, config = self._ladder, self._ladder.config
        assert ladder.record is not None, "the ladder is declared"
        plan = ArmPlan(
            home=ladder.home,
            owner="ladder",
            name=config.name,
            names=tuple(rung.name for rung in config.rungs),
            seeds=tuple(range(config.seeds)),
            workers=config.workers,
            budget_device_hours=self._budget_left(config.name),
            run_of=self._rung_run,
        )
        training = ArmScheduler(plan, self._ledger, self._execution)
        for rung in (*plan.names, OWN_SIZE):
            for run in training.finish([(rung, seed) for seed in plan.seeds if rung != OWN_SIZE]):
                self._on_message(f"rung {rung}, seed {run.seed}: run {run.run.run_id} is finished")
            run_ids = [ladder.record.base_run] if rung == OWN_SIZE else ladder.rung_runs(rung)
            trial = LadderTrial(rung=rung, campaign="", clauses=tuple(self._loss_band(rung, run_ids, is_base=True)))
            yield trial
            if action_of(BASE_STEP, [trial]) == "stop":
                return

    def _rung_run(self, rung: str, seed: int) -> Run:
        ladder, config = self._ladder, self._ladder.config
        return ensure_run(
            ladder.home,
            patched(config.at_rung(ladder.base.recipe, rung), {}, arm=rung, seed=seed),
            run_id=ladder.rung_runs(rung)[seed],
            workers=config.workers,
            of=f"rung '{rung}' of ladder '{config.name}'",
            owner="ladder",
        )

    def _loss_band(self, rung: str, run_ids: Sequence[str], *, is_base: bool) -> Iterator[Clause]:
        """Yield the verdict on the held-out loss of runs at a rung; nothing if no gate judges it, or if no law can be
        fitted to smaller runs."""
        gate = self._ladder.config.gates.loss_band
        if gate is not None and (points := self._points(rung, gate.points)) is not None:
            yield loss_band_clause(gate, points, self._ledger, run_ids, is_base=is_base)

    def _points(self, rung: str, file: str | None) -> ScalingPoints | None:
        """Return the points that a law for a rung is fitted to: of a file, or of all smaller rungs."""
        if file is not None:
            return read_points(self._ladder.base_dir / file)
        names = [item.name for item in self._ladder.config.rungs]
        smaller = names if rung == OWN_SIZE else names[: names.index(rung)]
        run_ids = [run_id for name in smaller for run_id in self._ladder.rung_runs(name)]
        return points_of_runs(self._ledger, run_ids) if len(smaller) >= LEAST_RUNGS else None

    # A change

    def _change_trials(self, change: str, error_rate: float) -> Iterator[LadderTrial]:
        """Run the campaigns of a change, at the base's own size last; end with a base that left its law."""
        for rung in self._ladder.config.trial_rungs:
            trial = self._trial(change, rung, error_rate)
            yield trial
            if action_of(change, [trial]) == "stop":
                return

    def _trial(self, change: str, rung: str, error_rate: float) -> LadderTrial:
        """Run the campaign of a change at a rung, and judge every gate."""
        ladder, gates = self._ladder, self._ladder.config.gates
        on, name = ladder.known_good(before=change), ladder.config.campaign_name(change, rung)
        budget = self._budget_left(name)
        campaign = ladder.campaign(change, rung=rung, on=on, error_rate=error_rate, budget_device_hours=budget)
        arms = (campaign.config.baseline, change)
        try:
            self._run_campaign(campaign)
        except TrainingError:
            failed = {arm: [run for run in self._runs(campaign, arm) if is_not_finite(run)] for arm in arms}
            if failed[arms[0]] or not failed[change]:
                raise
            return LadderTrial(rung=rung, campaign=name, clauses=(warnings_clause(None, failed),))
        decision = ladder.decision(change, rung)
        assert decision is not None, "the campaign has decided"
        run_ids = {arm: [run.run_id for run in decision.runs if run.arm == arm] for arm in arms}
        runs = {arm: [ladder.home.run(run_id) for run_id in run_ids[arm]] for arm in arms}
        clauses = [gain_clause(decision)]
        # The law is the base's, so runs of the known-good config must follow it only while that is the base.
        for arm in arms if on.path == ladder.base.path else (change,):
            clauses += self._loss_band(rung, run_ids[arm], is_base=arm != change)
        if gates.step_time is not None:
            clauses.append(step_time_clause(gates.step_time, campaign, ladder.home, runs))
        if gates.code_length is not None:
            pairs = list(zip(*run_ids.values(), strict=True))
            clauses.append(code_length_clause(gates.code_length, self._ledger, pairs))
        if gates.warnings:
            clauses.append(warnings_clause(decision, runs))
        return LadderTrial(rung=rung, campaign=name, decision_sha256=decision.digest(), clauses=tuple(clauses))

    def _run_campaign(self, campaign: LoadedCampaign) -> OpenCampaign:
        """Run a campaign, or continue it; return it. Raises `CampaignStopped` if it ends without deciding."""
        opened = declare(campaign, self._execution.clock)
        written = run_campaign(opened, self._ledger, execution=self._execution, on_message=self._on_message)
        if written.memo.stopped_by is not None:
            raise CampaignStopped(written.memo.stopped_by)
        return opened

    def _runs(self, campaign: LoadedCampaign, arm: str) -> list[Run]:
        """Return the runs of an arm that have begun."""
        run_ids = [campaign.config.run_id(arm, seed) for seed in campaign.config.seed_numbers]
        return [self._ladder.home.run(run_id) for run_id in run_ids if self._ladder.home.has_run(run_id)]

    # All adopted changes

    def _together_trials(self) -> Iterator[LadderTrial]:
        """Check whether the gains of the adopted changes add up; there is nothing to check for fewer than two."""
        ladder, name = self._ladder, self._ladder.config.campaign_name(TOGETHER_STEP)
        if len(ladder.adopted()) < 2:
            return
        error_rate, budget = 1.0 - ladder.config.rule.confidence, self._budget_left(name)
        opened = self._run_campaign(
            ladder.campaign(TOGETHER_STEP, on=ladder.base, error_rate=error_rate, budget_device_hours=budget)
        )
        decision = ladder.decision(TOGETHER_STEP)
        assert decision is not None, "the campaign has decided"
        then = [ladder.decision(change.name) for change in ladder.adopted()]
        scoring = Scoring(self._ledger, self._execution.clock)
        clauses = (gain_clause(decision), interaction_clause(opened, scoring, [item for item in then if item]))
        yield LadderTrial(rung=OWN_SIZE, campaign=name, decision_sha256=decision.digest(), clauses=clauses)
