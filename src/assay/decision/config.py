"""The configuration of a campaign: candidates, seeds, benchmarks, looks and gates, all declared beforehand.

    campaign --+-- recipe            the known-good one; or a command that trains the baseline, or runs
               +-- candidates        a patch each; or a command, or runs
               +-- seeds, looks      numbers of paired seeds at which the gates are judged
               +-- benchmarks        sources of per-item scores
               +-- rule              the standard rule's thresholds; becomes the gates `scale` and `stop`
               +-- gates             further ones, e.g. a rollback condition

A gate is data: a list of conditions distinguished by `type`, and whether all or any of them must hold.
`clauses.py` evaluates conditions; this module reads no results.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from assay.base.config import FrozenConfig, WrongKeyError, first_repeated
from assay.base.names import meant
from assay.base.units import number_of
from assay.decision.candidate import BASELINE
from assay.records.campaign import run_id_of
from assay.statistics.campaign.looks import LookPlan
from assay.statistics.campaign.rule import CampaignRule
from assay.statistics.seeds.trimmed import MIN_SEEDS, OverSeeds

ROW_SCORES = ("correct", "ranking", "log_likelihood")
"""Scores of a class prediction for each row; other methods have their own scores."""

Share = Annotated[float, Field(gt=0.0, lt=1.0)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=40)]
"""Part of run ids and folders."""


class Candidate(FrozenConfig):
    """A patch on the recipe, a training script's command, or runs on record, compared with the baseline."""

    name: Name
    """Part of its runs' ids."""

    because: str = ""
    """Why it might help, for the memo."""

    patch: dict[str, Any] = Field(default_factory=dict)
    """Dotted key of the recipe -> value, e.g. `trainer.optimizer.learning_rate: 2e-3`. Several keys cause a
    warning.
    """

    command: str | None = None
    """Instead of a patch: a shell command that trains it and records itself (docs/record.md), e.g.
    `python train.py --seed {seed} --out {out}`."""

    runs: tuple[str, ...] = ()
    """Instead of a patch: ids of its runs, recorded or sessions, in the order of the seeds."""

    @property
    def change(self) -> dict[str, Any]:
        """What distinguishes it from the baseline: its patch, command or runs."""
        return self.patch or ({"runs": list(self.runs)} if self.runs else {"command": self.command})

    @model_validator(mode="after")
    def _is_a_candidate(self) -> "Candidate":
        trained_by = [key for key in ("patch", "command", "runs") if getattr(self, key)]
        if not trained_by:
            raise ValueError(
                f"candidate '{self.name}' has no patch: it would be the baseline again. Or give a command or runs"
            )
        if len(trained_by) > 1:
            raise ValueError(f"candidate '{self.name}' has {' and '.join(trained_by)}: keep the one that trains it")
        if seeds := sorted({"seed", "loader.seed"} & set(self.patch)):
            raise ValueError(
                f"candidate '{self.name}' patches {seeds[0]}, but all arms are trained with the campaign's "
                "seeds. Remove the key"
            )
        return self


class PredictionsBenchmark(FrozenConfig):
    """A score of each validation row, from the predictions at the end of a run. Costs nothing."""

    type: Literal["predictions"]

    name: Name
    """In rule and memo."""

    score: str = "correct"
    """Score of a row. For classifiers: `correct` (1 if the class is right, at 0.5), `ranking` (two classes; the row's
    DeLong influence value, with the AUC as mean), `log_likelihood` of the true class in nats. For other methods: `own`,
    their row score with its unit and direction, e.g. an absolute error; or the name of another metric, e.g. `length` or
    `kl` of completions of held-out prompts."""

    where: dict[str, str | bool | int | None] = Field(default_factory=dict)
    """Only rows whose metadata columns or `label` have these values, e.g. `{kind: method}`, `{is_async: true}`."""

    cluster: str | None = "split_cluster"
    """Column of the predictions that defines clusters (a source, a file). Default: the rows that the split kept
    together (`data.split.column`); null: every row is independent."""


class SuiteBenchmark(FrozenConfig):
    """A benchmark of a suite, on each run's last weights."""

    type: Literal["suite"]

    name: Name
    """In rule and memo."""

    benchmark: str | None = None
    """Its name in the suite, if not `name`."""

    suite: str | None = None
    """The suite's file, for missing results; relative to the campaign's file. Null: the recipe's `evaluation.suite`
    makes the results, or they were imported."""


Benchmark = Annotated[PredictionsBenchmark | SuiteBenchmark, Field(discriminator="type")]


class GuardrailRule(FrozenConfig):
    """A benchmark that must not get worse."""

    benchmark: Name
    """One of `benchmarks`."""

    margin: PositiveFloat
    """The largest acceptable loss, in the benchmark's unit; its upper bound must be smaller."""


class SafetyRule(FrozenConfig):
    """A failure mode with a limited rate, independent of the baseline's rate."""

    benchmark: Name
    """Its items score 1 if the failure mode did not occur, else less."""

    max_rate: Share
    """The exact 95% upper bound must be below."""


class SealedRule(FrozenConfig):
    """A holdout that is not scored before the decision, so nothing is tuned on it."""

    benchmark: Name
    """One of `benchmarks`, of type `suite`, in its own suite file. It is scored once per candidate, at the
    declared look at which every other clause of `scale` holds. If it was scored before, the clause fails.
    """

    least_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Share of the primary gain that it must show."""


class ScalingRule(FrozenConfig):
    """Requirement on the gain at the target scale."""

    target: PositiveFloat | None = None
    """The gain there is forecast from this campaign and `campaigns` (five scales or more), with an 80% lower bound
    calibrated by back-test.
    """

    scale: Literal["parameters", "tokens", "compute"] = "compute"
    """Quantity of `target`; compute in FLOP (6 N D)."""

    campaigns: tuple[Name, ...] = ()
    """With the same patch and candidate name at other scales."""

    record: str | None = None
    """Instead of a forecast: a JSON file with `low` (80% lower bound) and `value` of that gain."""

    @model_validator(mode="after")
    def _has_one_source(self) -> "ScalingRule":
        if (self.record is None) == (self.target is None):
            raise ValueError("give either a target (and campaigns), or a record from elsewhere")
        return self


class PlanRule(FrozenConfig):
    """Requirement on the plan's simulation."""

    record: str
    """File of the offer with the simulated probabilities (`safety`)."""

    p_on_time: Share = 0.80
    """Least probability of ending by its date."""
    p_in_budget: Share = 0.90
    """Least probability of staying within device-hours."""


class StandardRule(FrozenConfig):
    """The standard rule (docs/decide.md): each key becomes a clause of the gate `scale` or `stop`."""

    primary: tuple[Name, ...] = Field(min_length=1)
    """Averaged to the effect. With several, no single one may carry it."""

    least_effect: PositiveFloat
    """The smallest gain worth having, in the primary benchmarks' unit."""

    prior_sd: PositiveFloat | None = None
    """Standard deviation of true effects of such candidates around 0. Null: 4/3 of `least_effect`; better: fitted
    to past campaigns.
    """

    confidence: Share = 0.95
    """Probability, over all looks and candidates, that no gain is claimed if there is none (one-sided)."""

    probability: Annotated[float, Field(gt=0.5, lt=1.0)] = 0.80
    """`scale` needs this probability of a gain of at least `least_effect`, and of a replication that finds a gain."""

    stop_probability: Annotated[float, Field(gt=0.0, lt=0.5)] = 0.20
    """`stop` if a gain of at least `least_effect` is less probable than this."""

    least_predictive_power: Annotated[float, Field(ge=0.0, lt=0.5)] = 0.02
    """End the campaign if `scale` by the last look is less probable than this."""

    over_seeds: OverSeeds = "mean"
    """`trimmed` leaves out the best and the worst seed (five seeds or more at every look). It tolerates a crashed
    run and needs more seeds otherwise; guardrails and safety count every seed.
    """

    unscheduled_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of the error reserved for undeclared looks (`assay decide again NAME --now`)."""

    guardrails: tuple[GuardrailRule, ...] = ()
    """Each is a clause of `scale`; harm beyond its margin is a clause of `stop`."""

    safety: tuple[SafetyRule, ...] = ()
    """As guardrails, with exact bounds of a failure rate."""

    coverage: str | None = None
    """File of a coverage matrix (docs/suites.md) without holes. Files are relative to the campaign's."""

    drill: str | None = "audit"
    """`audit`: every run's receipts must prove that each row was learned once. Or a file of `assay train drill RECIPE
    --out FILE`: it must have passed, with the candidate's recipe apart from length, seeds, rows and learning rates.
    Null: no requirement."""

    sealed: SealedRule | None = None
    """Null: no requirement."""

    scaling: ScalingRule | None = None
    """Null: no requirement."""

    plan: PlanRule | None = None
    """Null: no requirement."""

    def thresholds(self) -> CampaignRule:
        """The statistical clauses' own configuration."""
        return CampaignRule(
            least_effect=self.least_effect,
            prior_sd=self.prior_sd or self.least_effect * 4 / 3,
            least_probability=self.probability,
            stop_probability=self.stop_probability,
            least_replication=self.probability,
            replication_level=self.confidence,
            least_predictive_power=self.least_predictive_power,
        )


class HarmCondition(FrozenConfig):
    """The benchmark got worse by more than `margin` (the whole interval lies beyond)."""

    type: Literal["harm"]

    benchmark: Name
    """One of `benchmarks`."""
    margin: NonNegativeFloat
    """In its unit."""


class RateCondition(FrozenConfig):
    """A failure mode is certainly more frequent than `max_rate`."""

    type: Literal["rate_above"]

    benchmark: Name
    """As for `safety`."""
    max_rate: Share
    """In the candidate's worst seed."""


class SpentCondition(FrozenConfig):
    """The campaign's arms have cost more than `device_hours`."""

    type: Literal["spent"]

    device_hours: PositiveFloat
    """For baseline and candidate together."""


Condition = Annotated[HarmCondition | RateCondition | SpentCondition, Field(discriminator="type")]


class Gate(FrozenConfig):
    """A further gate in addition to those of the rule."""

    name: Name
    """For the memo."""

    then: Literal["stop", "rollback"]
    """Action if it passes. `rollback` returns a recipe that is already in use to its parent."""

    when: Literal["all", "any"] = "any"

    conditions: tuple[Condition, ...] = Field(min_length=1)
    """Combined by `when`."""


class CampaignConfig(FrozenConfig):
    """Baseline and candidates x seeds, judged by gates that were declared before the first run."""

    name: Name
    """Part of its runs' ids; its folder is `runs/campaigns/NAME`."""

    question: str
    """What the memo answers."""

    recipe: str | None = None
    """The known-good recipe: a YAML file, or the `known_good.json` of an earlier campaign. Relative to the campaign's
    file. One of `recipe`, `command` and `runs` is required."""

    command: str | None = None
    """Instead of a recipe: trains the baseline, as for candidates."""

    runs: tuple[str, ...] = ()
    """Instead of a recipe: ids of the baseline's runs, as for candidates."""

    baseline: Name = BASELINE
    """The arm without a patch; part of its runs' ids."""

    candidates: tuple[Candidate, ...] = Field(min_length=1)
    """Compared with the baseline."""

    seeds: PositiveInt
    """Paired seeds at the last look."""

    looks: tuple[PositiveInt, ...] = ()
    """Earlier numbers of seeds at which the gates are judged; all looks share one error. If candidates crash now
    and then, or seeds are correlated, gains are claimed too often (docs/evidence.md).
    """

    first_seed: int = Field(default=0, ge=0)
    """A replication starts after the first campaign's last seed."""

    workers: PositiveInt = 1
    """Ranks of each run."""

    budget_device_hours: PositiveFloat
    """For training all runs. No run begins that would exceed it. Evaluation is reported separately."""

    benchmarks: tuple[Benchmark, ...] = Field(min_length=1)
    """Sources of per-item scores."""

    rule: StandardRule
    """The decision rule."""

    gates: tuple[Gate, ...] = ()
    """Further conditions to stop or roll back."""

    dissent: tuple[str, ...] = ()
    """Objections by people, for the memo."""

    owner: str = ""
    """Owner of the next step."""

    least_effect_because: str = ""
    """Why a smaller gain than `rule.least_effect` is not worth it."""

    @property
    def all_looks(self) -> tuple[int, ...]:
        """Numbers of seeds at every look, including the last."""
        return tuple(sorted({*self.looks, self.seeds}))

    @property
    def arm_names(self) -> tuple[str, ...]:
        return (self.baseline, *(candidate.name for candidate in self.candidates))

    @property
    def seed_numbers(self) -> tuple[int, ...]:
        """Seeds in training order."""
        return tuple(range(self.first_seed, self.first_seed + self.seeds))

    @property
    def open_benchmarks(self) -> tuple[Benchmark, ...]:
        """All benchmarks but the sealed one."""
        return tuple(benchmark for benchmark in self.benchmarks if benchmark != self.sealed_benchmark)

    @property
    def secondary(self) -> tuple[PredictionsBenchmark, ...]:
        """Secondary scores of the primary benchmarks' rows (correct, ranking, likelihood), and `correct` of all rows,
        that no benchmark declares. They are reported, but no gate uses them."""
        declared = [benchmark for benchmark in self.benchmarks if isinstance(benchmark, PredictionsBenchmark)]
        found: list[PredictionsBenchmark] = []
        for benchmark in declared:
            if benchmark.name not in self.rule.primary or benchmark.score not in ROW_SCORES:
                continue
            others = [
                benchmark.model_copy(update={"name": f"{benchmark.name}-{score}", "score": score})
                for score in ROW_SCORES
            ]
            others.append(benchmark.model_copy(update={"name": "all-rows", "score": "correct", "where": {}}))
            for other in others:
                known = (*declared, *found)
                if all(
                    other.name != item.name and (other.score, other.where) != (item.score, item.where) for item in known
                ):
                    found.append(other)
        return tuple(found)

    @property
    def sealed_benchmark(self) -> SuiteBenchmark | None:
        """The benchmark that is scored for the decision only."""
        sealed = self.rule.sealed
        found = [
            benchmark for benchmark in self.benchmarks if sealed is not None and benchmark.name == sealed.benchmark
        ]
        return found[0] if found and isinstance(found[0], SuiteBenchmark) else None

    @property
    def differing_clusters(self) -> dict[str, str | None]:
        """Cluster columns of primary benchmarks on different rows of a split; empty if they share all rows."""
        primary = [
            benchmark
            for benchmark in self.benchmarks
            if isinstance(benchmark, PredictionsBenchmark) and benchmark.name in self.rule.primary
        ]
        is_alike = all(benchmark.where == primary[0].where for benchmark in primary)
        return {} if is_alike else {benchmark.name: benchmark.cluster for benchmark in primary}

    def look_plan(self) -> LookPlan:
        """Return how a candidate's share of the error is spent over the looks."""
        return LookPlan(
            gate_seeds=self.all_looks,
            error_rate=(1.0 - self.rule.confidence) / len(self.candidates),
            unscheduled_share=self.rule.unscheduled_share,
        )

    def candidate(self, name: str) -> Candidate:
        return next(candidate for candidate in self.candidates if candidate.name == name)

    def arm(self, name: str) -> "CampaignConfig | Candidate":
        """Return what declares an arm: of the baseline, the campaign itself."""
        return self if name == self.baseline else self.candidate(name)

    def has_recipe(self, arm: str) -> bool:
        """Return whether assay trains the arm from a recipe."""
        return not (self.arm(arm).command or self.arm(arm).runs)

    def run_id(self, arm: str, seed: int) -> str:
        """Return the id of an arm's run with one seed."""
        runs = self.arm(arm).runs
        return runs[seed - self.first_seed] if runs else run_id_of(self.name, arm, seed)

    @model_validator(mode="after")
    def _arms_can_be_trained(self) -> "CampaignConfig":
        trained_by = [key for key in ("recipe", "command", "runs") if getattr(self, key)]
        if len(trained_by) != 1:
            message = (
                f"the baseline has one of recipe, command and runs, not {' and '.join(trained_by) or 'none of them'}"
            )
            raise WrongKeyError("recipe", message)
        named = {f"candidates.{index}.": candidate for index, candidate in enumerate(self.candidates)}
        known: set[str] = set()
        arms: dict[str, CampaignConfig | Candidate] = {"": self, **named}
        for prefix, arm in arms.items():
            if isinstance(arm, Candidate) and arm.patch and self.recipe is None:
                raise WrongKeyError(f"{prefix}patch", "a patch changes a recipe, and the campaign has none")
            if arm.command is not None and "{seed}" not in arm.command:
                raise WrongKeyError(f"{prefix}command", "without {seed} in it, all seeds would be the same training")
            if arm.runs and len(arm.runs) != self.seeds:
                message = f"names {number_of(len(arm.runs), 'run')} for {number_of(self.seeds, 'seed')}"
                raise WrongKeyError(f"{prefix}runs", f"{message}; give one for each, in the order of the seeds")
            if repeated := first_repeated([*arm.runs, *known.intersection(arm.runs)]):
                raise WrongKeyError(f"{prefix}runs", f"run '{repeated}' has two parts in the campaign")
            known.update(arm.runs)
        return self

    @model_validator(mode="after")
    def _arms_without_a_recipe_need_suites(self) -> "CampaignConfig":
        arm = next((name for name in self.arm_names if not self.has_recipe(name)), None)
        if arm is None:
            return self
        of = f"arm '{arm}' has no recipe"
        for index, benchmark in enumerate(self.benchmarks):
            if isinstance(benchmark, PredictionsBenchmark) or benchmark.suite is None:
                message = f"{of}, so only a suite can judge it: use type: suite, and name the suite's file"
                raise WrongKeyError(f"benchmarks.{index}", message)
        return self

    @model_validator(mode="after")
    def _names_are_distinct(self) -> "CampaignConfig":
        if self.baseline in [candidate.name for candidate in self.candidates]:
            raise WrongKeyError(
                "candidates", f"'{self.baseline}' is the recipe without a patch; give the candidate another name"
            )
        for kind, names in (
            ("candidate", [candidate.name for candidate in self.candidates]),
            ("benchmark", [benchmark.name for benchmark in self.benchmarks]),
            ("gate", ["scale", "stop", *(gate.name for gate in self.gates)]),
        ):
            if repeated := first_repeated(names):
                raise WrongKeyError(f"{kind}s", f"two {kind}s have the name '{repeated}'")
        for part, names in (
            ("primary", list(self.rule.primary)),
            ("guardrails", [guardrail.benchmark for guardrail in self.rule.guardrails]),
            ("safety", [safety.benchmark for safety in self.rule.safety]),
        ):
            if repeated := first_repeated(names):
                raise WrongKeyError(f"rule.{part}", f"names benchmark '{repeated}' twice; once is enough")
        return self

    @model_validator(mode="after")
    def _benchmarks_exist(self) -> "CampaignConfig":
        known = {benchmark.name for benchmark in self.benchmarks}
        if absent := next((named for named in _named_benchmarks(self).items() if named[1] not in known), None):
            key, name = absent
            raise WrongKeyError(
                key,
                f"benchmark '{name}' is named by the rule or a gate, but benchmarks lists only "
                f"{', '.join(sorted(known))}{meant(name, known)}",
            )
        return self

    @model_validator(mode="after")
    def _failures_can_be_counted(self) -> "CampaignConfig":
        counted = {safety.benchmark for safety in self.rule.safety} | {
            condition.benchmark
            for gate in self.gates
            for condition in gate.conditions
            if isinstance(condition, RateCondition)
        }
        for index, benchmark in enumerate(self.benchmarks):
            if (
                isinstance(benchmark, PredictionsBenchmark)
                and benchmark.name in counted
                and benchmark.score != "correct"
            ):
                raise WrongKeyError(
                    f"benchmarks.{index}.score",
                    f"benchmark '{benchmark.name}' has score: {benchmark.score}, which is never 1, so every item would "
                    "count as a failure. A failure rate needs score: correct",
                )
        return self

    @model_validator(mode="after")
    def _the_sealed_benchmark_stays_closed(self) -> "CampaignConfig":
        if (rule := self.rule.sealed) is None:
            return self
        sealed = self.sealed_benchmark
        if sealed is None or sealed.suite is None:
            raise WrongKeyError(
                "rule.sealed.benchmark",
                f"the sealed benchmark '{rule.benchmark}' must be one of benchmarks, with type: suite and a "
                "suite file, since it is scored for the decision only",
            )
        if any(
            isinstance(benchmark, SuiteBenchmark) and benchmark.suite == sealed.suite
            for benchmark in self.open_benchmarks
        ):
            raise WrongKeyError(
                "rule.sealed",
                f"suite {sealed.suite} holds the sealed benchmark '{sealed.name}' and is scored for another "
                "one. Give the sealed benchmark a suite file of its own",
            )
        if sealed.name in _named_benchmarks(self).values():
            raise WrongKeyError(
                "rule.sealed.benchmark",
                f"the sealed benchmark '{sealed.name}' has another part in the rule or a gate, which would "
                "open it at every look",
            )
        return self

    @model_validator(mode="after")
    def _looks_are_valid(self) -> "CampaignConfig":
        if late := [look for look in self.looks if look >= self.seeds]:
            raise WrongKeyError("looks", f"looks={late} are not before the last one, at seeds={self.seeds}")
        if (first := self.all_looks[0]) < 2:
            key = "looks.0" if self.looks else "seeds"
            message = f"a look at {number_of(first, 'seed')} cannot separate noise from effect; look at 2 seeds or more"
            raise WrongKeyError(key, message)
        if self.rule.over_seeds == "trimmed" and first < MIN_SEEDS:
            raise WrongKeyError(
                "rule.over_seeds",
                "over_seeds: trimmed leaves the best and the worst seed out, so a look at "
                f"{number_of(first, 'seed')} has too few left. Look at {MIN_SEEDS} seeds or more, or take "
                "the mean",
            )
        return self


def _named_benchmarks(config: CampaignConfig) -> dict[str, str]:
    """Map keys to the benchmarks that the rule or a gate uses at every look."""
    rule = config.rule
    found = {f"rule.primary.{index}": name for index, name in enumerate(rule.primary)}
    found |= {
        f"rule.guardrails.{index}.benchmark": guardrail.benchmark for index, guardrail in enumerate(rule.guardrails)
    }
    found |= {f"rule.safety.{index}.benchmark": safety.benchmark for index, safety in enumerate(rule.safety)}
    for of_gate, gate in enumerate(config.gates):
        for index, condition in enumerate(gate.conditions):
            if not isinstance(condition, SpentCondition):
                found[f"gates.{of_gate}.conditions.{index}.benchmark"] = condition.benchmark
    return found
