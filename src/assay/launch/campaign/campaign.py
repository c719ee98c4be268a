"""Runs a campaign: baseline and open candidates seed by seed, judged at the declared looks, within the budget.

    seed 0: baseline, faster, dropout      seed 1: ...      seed 2: ...   look: dropout is stopped
                                                            seed 3: baseline, faster     seed 4: ...  look:
                                                            scale

Seed by seed, so that at any moment all open arms have the same seeds and a comparison is paired. A candidate
that is decided is trained no further: that is where a campaign saves its device-hours. Nothing is in memory
only, so a campaign that was killed goes on by being run again.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from assay.base.clock import Clock, SystemClock
from assay.base.units import duration_text
from assay.evaluation.decision.candidate import BASELINE, warning_of_patch
from assay.evaluation.evidence.benchmark_items import load_result
from assay.launch.campaign.arms import arm_run
from assay.launch.campaign.folder import OpenCampaign
from assay.launch.campaign.look import look_at
from assay.launch.campaign.scores import ScoredRun, scored_run
from assay.launch.campaign.seal import Bench, ScoreSealed, score_sealed
from assay.launch.campaign.train import settle, train_arm
from assay.launch.ranks.supervisor import Watcher
from assay.records.decision import Decision
from assay.records.evaluation import ClassifierEvaluation
from assay.records.run import Run
from assay.store.ledger.ledger import Ledger

Say = Callable[[str], None]
WatcherOf = Callable[[Run], Watcher]


class TrainArm(Protocol):
    """What trains a run, or finds it trained."""

    def __call__(
        self,
        campaign: OpenCampaign,
        run: Run,
        ledger: Ledger,
        *,
        watchers: Sequence[Watcher],
        clock: Clock,
    ) -> ClassifierEvaluation | None:
        """The run's last evaluation; None where the run was asked to stop before its end."""
        ...


class CampaignResult(NamedTuple):
    """Where a campaign stands."""

    decisions: dict[str, Decision]
    """Candidate -> its newest decision; absent before its first look."""
    stopped_by: str | None
    """Why it ended before all candidates were decided: the budget, or a request to stop. None: it did not."""


class CampaignStopped(Exception):  # noqa: N818 (an event, not an error)
    """A run left because it was asked to; the campaign leaves with it."""


def run_campaign(
    campaign: OpenCampaign,
    ledger: Ledger,
    *,
    watcher_of: WatcherOf,
    say: Say,
    train: TrainArm = train_arm,
    score: ScoreSealed = score_sealed,
    clock: Clock | None = None,
) -> CampaignResult:
    """Train, judge and decide until every candidate is decided, the seeds are done, or the budget is.

    `train` makes a run's last evaluation be there; it may come from anywhere, e.g. a scheduler's queue. `score`
    does the same for a sealed benchmark's results.
    """
    ledger.record_campaign(campaign.record)
    arms = _Arms(campaign, Bench(ledger, clock or SystemClock(), score), watcher_of, say, train)
    for candidate in campaign.config.candidates:
        if warning := warning_of_patch(candidate.name, candidate.patch):
            say(f"warning: {warning}")
    try:
        for num_seeds, seed in enumerate(campaign.config.seed_numbers, start=1):
            if (reason := arms.train_seed(seed)) is not None:
                return CampaignResult(arms.decisions, reason)
            if num_seeds in campaign.config.all_looks:
                arms.look(num_seeds)
            if not arms.open:
                break
    except CampaignStopped as stopped:
        return CampaignResult(arms.decisions, str(stopped))
    return CampaignResult(arms.decisions, None)


class _Arms:
    """The arms of a campaign and what is known of them."""

    def __init__(
        self,
        campaign: OpenCampaign,
        bench: Bench,
        watcher_of: WatcherOf,
        say: Say,
        train: TrainArm,
    ) -> None:
        self._campaign = campaign
        self._bench = bench
        self._ledger = bench.ledger
        self._watcher_of = watcher_of
        self._say = say
        self._train = train
        self._clock = bench.clock
        self._runs: dict[str, list[ScoredRun]] = {BASELINE: []}
        self.open = [each.name for each in campaign.config.candidates]
        self.decisions: dict[str, Decision] = {}

    def train_seed(self, seed: int) -> str | None:
        """Train the baseline and every open candidate with `seed`; the reason if the budget forbids."""
        for arm in [BASELINE, *self.open]:
            run = arm_run(self._campaign, arm, seed)
            if (reason := self._beyond_budget(run, arm, seed)) is not None:
                return reason
            evaluation = self._train(
                self._campaign, run, self._ledger, watchers=[self._watcher_of(run)], clock=self._clock
            )
            if evaluation is None:
                raise CampaignStopped(
                    f"asked to stop in run {run.run_id}; it committed, and goes on when the campaign is run "
                    "again"
                )
            scored = scored_run(self._campaign, run, self._ledger, arm=arm, seed=seed, clock=self._clock)
            self._runs.setdefault(arm, []).append(scored)
            self._say(f"{arm}, seed {seed}: {self._spent_text(scored)}")
        return None

    def look(self, num_seeds: int) -> None:
        """Judge every open candidate; close those that are decided."""
        for candidate in list(self.open):
            decision = look_at(
                self._campaign,
                candidate,
                self._runs[BASELINE][:num_seeds],
                self._runs[candidate][:num_seeds],
                self._bench,
            )
            self.decisions[candidate] = decision
            self._say(f"look at {num_seeds} seeds: {decision.sentence}")
            if decision.is_final:
                self.open.remove(candidate)

    def _beyond_budget(self, run: Run, arm: str, seed: int) -> str | None:
        """A run that has begun may end; a new one must fit, by what runs of its arm took so far."""
        if self._ledger.attempts(run.run_id):
            settle(run, self._ledger)
            return None
        budget_s = self._campaign.config.budget_device_hours * 3600
        spent_s = self._spent_s()
        like = self._runs.get(arm) or self._runs[BASELINE]
        expected_s = sum(each.record.device_s for each in like) / len(like) if like else 0.0
        if spent_s + expected_s <= budget_s:
            return None
        return (
            f"the budget of {duration_text(budget_s)} device time is used up: {duration_text(spent_s)} are "
            f"spent and {arm} with seed {seed} takes about {duration_text(expected_s)}. Raise "
            "budget_device_hours and run the campaign again: it goes on from here"
        )

    def _spent_s(self) -> float:
        return sum(each.record.device_s for each in self._all_runs())

    def _all_runs(self) -> Iterator[ScoredRun]:
        for runs in self._runs.values():
            yield from runs

    def _spent_text(self, scored: ScoredRun) -> str:
        took = duration_text(scored.record.device_s)
        primary = self._campaign.config.rule.primary[0]
        result = load_result(scored.folders[primary])
        return f"{primary} {result.score.value:.4f}, {took} of device time"
