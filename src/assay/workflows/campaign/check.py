"""Checks a campaign before its first run: the recipe of every arm, its expected cost, and the power of its looks and
guardrails.

A harmless candidate passes a guardrail as often as a gain of the margin's size would be detected, because the bound is
the same with its sign reversed, except for the allowance for rare harm. All guardrails must pass, so their
probabilities multiply.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

from assay.base.clock import Clock
from assay.base.errors import ConfigError
from assay.base.names import meant
from assay.base.units import number_of
from assay.data.dataset.columns import ITEM, holds_lists
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import key_column
from assay.data.loader.lane_shares import LaneShares
from assay.decision.config import (
    Benchmark,
    CampaignConfig,
    GuardrailRule,
    HarmCondition,
    PredictionsBenchmark,
    SafetyRule,
    SuiteBenchmark,
)
from assay.decision.row_scores import METRICS
from assay.evals.compatibility import supported_suite
from assay.reporting.views.statements import (
    bound_text,
    chance_text,
    device_time_text,
    effect_text,
    is_beyond,
    rate_text,
)
from assay.reporting.views.warnings import warning_text
from assay.statistics.campaign.look_power import LookPower, power_of_looks, sufficient_design
from assay.statistics.failure_rate import rate_upper, trials_needed
from assay.statistics.guardrail import pass_probability, rare_event_allowance
from assay.statistics.power import MAX_SEEDS, POWER, VarianceComponents, minimum_detectable_effect, seeds_needed
from assay.statistics.predictions import CLUSTER, ROW_ID
from assay.statistics.seeds.trimmed import MIN_SEEDS, OverSeeds
from assay.statistics.warnings import MAX_LOST, MIN_FOUND, warnings_of_clusters
from assay.training.recipe import Recipe
from assay.training.trainer.method_config import (
    BinaryPredictions,
    ClassPredictions,
    MethodConfig,
    Predictions,
)
from assay.workflows.calibration import calibrate
from assay.workflows.campaign.folder import LoadedCampaign, check_declaration
from assay.workflows.campaign.paired_noise import ItemDraws, NoiseEstimator, PairedNoise
from assay.workflows.preview import expected_s, preview
from assay.workflows.run import check_new, check_recipe, count_steps


def check_arms(loaded: LoadedCampaign, *, is_declared: bool) -> int:
    """Check the recipe of every arm on its dataset before anything starts; return the number of runs.

    Fewer checks apply to a campaign that is declared already, which continues as declared.
    """
    config = loaded.config

    def arm(name: str, patch: dict[str, Any]) -> tuple[Recipe, Dataset]:
        found = check_recipe(loaded.recipe_of(name))
        LaneShares(found[0].loader.lanes, config.workers)
        if not is_declared:
            try:
                # The notes are ignored: they are about intermediate evaluations, and a campaign uses the last weights.
                check_new(found[0], count_steps(*found).planned, changed=patch)
            except ConfigError as error:
                raise ConfigError(f"arm '{name}': {error}") from error
            _check_suites(name, config, found[0].method, base_dir=loaded.base_dir)
        _check_scores(name, config, found[0].method.predictions)
        _check_columns(name, config, *found)
        return found

    baseline = arm(config.baseline, {})
    if not is_declared:
        _check_sizes(config, baseline[0].method.predictions)
    for candidate in config.candidates:
        _check_candidate(candidate.name, config, baseline, arm(candidate.name, candidate.patch))
    return (1 + len(config.candidates)) * config.seeds


def _check_candidate(
    name: str, config: CampaignConfig, baseline: tuple[Recipe, Dataset], found: tuple[Recipe, Dataset]
) -> None:
    """Raise `ConfigError` if the candidate equals the baseline or cannot be compared with it."""
    if found[0] == baseline[0]:
        raise ConfigError(
            f"candidate '{name}': its patch changes nothing: the baseline's recipe has these values already."
        )
    rows = [(entry[0].data.split, entry[1].fingerprint) for entry in (baseline, found)]
    scored = [benchmark.name for benchmark in config.benchmarks if isinstance(benchmark, PredictionsBenchmark)]
    if scored and rows[0] != rows[1]:
        raise ConfigError(
            f"candidate '{name}' has another dataset or split than the baseline, so the validation rows "
            f"that benchmark '{scored[0]}' scores differ. Compare the two on a suite (type: suite)."
        )


def _check_scores(arm: str, config: CampaignConfig, predictions: Predictions) -> None:
    """Raise `ConfigError` if the arm's predictions lack a score of a benchmark."""
    known = _scores_of(predictions)
    for benchmark in config.benchmarks:
        if isinstance(benchmark, PredictionsBenchmark) and benchmark.score not in known:
            raise ConfigError(
                f"benchmark '{benchmark.name}': score: {benchmark.score} is not a score of the predictions of "
                f"arm '{arm}'. Use score: {', '.join(known)}."
            )


def _check_columns(arm: str, config: CampaignConfig, recipe: Recipe, dataset: Dataset) -> None:
    """Raise `ConfigError` if the arm's predictions lack a column to filter or cluster by."""
    known = predicted_columns(recipe, dataset)
    for benchmark in config.benchmarks:
        if not isinstance(benchmark, PredictionsBenchmark):
            continue
        requested = {f"where.{name}": name for name in benchmark.where}
        if benchmark.cluster not in (None, CLUSTER):
            requested["cluster"] = benchmark.cluster
        for key, name in requested.items():
            if name in known:
                continue
            read = (
                f" The dataset has it, but arm '{arm}' does not read it: add it to the method's columns."
                if name in dataset.manifest.columns
                else ""
            )
            raise ConfigError(
                f"benchmark '{benchmark.name}', {key}: the rows that arm '{arm}' predicts have no column "
                f"'{name}'{meant(name, known)}. They have: {', '.join(known)}.{read}"
            )


def predicted_columns(recipe: Recipe, dataset: Dataset) -> list[str]:
    """Return the columns of the predictions of such a run."""
    types = dataset.manifest.columns
    read = [name for name in recipe.method.columns if name != ITEM and not holds_lists(types[name])]
    split = [] if key_column(recipe.data.split) is None else [CLUSTER]
    return list(dict.fromkeys([ROW_ID, *recipe.method.predictions.columns, *read, *split]))


def _check_sizes(config: CampaignConfig, predictions: Predictions) -> None:
    """Raise `ConfigError` for a margin of 1 or more on a share, which is usually meant in points."""
    shares = {benchmark.name for benchmark in config.benchmarks if _is_share(benchmark, predictions)}
    rule = config.rule
    sizes = [("rule.least_effect", rule.least_effect, name) for name in rule.primary]
    sizes += [("rule.guardrails: margin", guardrail.margin, guardrail.benchmark) for guardrail in rule.guardrails]
    sizes += [
        (f"gate '{gate.name}': margin", condition.margin, condition.benchmark)
        for gate in config.gates
        for condition in gate.conditions
        if isinstance(condition, HarmCondition)
    ]
    for key, size, name in sizes:
        if name in shares and size >= 1.0:
            raise ConfigError(
                f"{key}={size:g}: benchmark '{name}' is a share between 0 and 1, and cannot change by "
                f"that much. A point is 0.01; perhaps you meant {size / 100:g}."
            )


def _is_share(benchmark: Benchmark, predictions: Predictions) -> bool:
    if isinstance(benchmark, SuiteBenchmark):
        return False  # the unit is known from its results only
    if isinstance(predictions, BinaryPredictions) or benchmark.score == "correct":
        return benchmark.score in ("correct", "ranking")
    named = {metric.name: metric for metric in predictions.metrics} | {"own": predictions.metric}
    return benchmark.score in named and named[benchmark.score].unit == "share"


def _scores_of(predictions: Predictions) -> list[str]:
    if isinstance(predictions, BinaryPredictions):
        return [*METRICS]
    of_classes = ["correct", "log_likelihood"] if isinstance(predictions, ClassPredictions) else []
    return ["own", *of_classes, *(metric.name for metric in predictions.metrics)]


def _check_suites(arm: str, config: CampaignConfig, method: MethodConfig, *, base_dir: Path) -> None:
    for benchmark in config.benchmarks:
        if isinstance(benchmark, SuiteBenchmark) and benchmark.suite is not None:
            check_suite(benchmark, base_dir / benchmark.suite, method, owner=f"arm '{arm}'")


def check_suite(benchmark: SuiteBenchmark, path: Path, method: MethodConfig, *, owner: str) -> None:
    """Raise an error if the suite cannot be read, does not fit the method, or lacks the campaign's benchmark."""
    name, suite = benchmark.benchmark or benchmark.name, supported_suite(path, method, owner=owner)
    known = [item.name for item in suite.benchmarks]
    if name not in known:
        raise ConfigError(f"{path}: has no benchmark '{name}', which the campaign names; it has {', '.join(known)}.")


def _missing_files(loaded: LoadedCampaign) -> list[str]:
    """Return the files that the rule names and that do not exist yet, as `key: path`."""
    rule, folder = loaded.config.rule, loaded.base_dir
    requested = {
        "rule.coverage": rule.coverage,
        "rule.drill": None if rule.drill == "audit" else rule.drill,
        "rule.scaling.record": rule.scaling.record if rule.scaling else None,
        "rule.plan.record": rule.plan.record if rule.plan else None,
    }
    return [f"{key}: {folder / path}" for key, path in requested.items() if path and not (folder / path).is_file()]


def expected_cost(loaded: LoadedCampaign, *, seconds: float) -> str:
    """Measure baseline steps for `seconds`; return the cost of all runs as text, if candidates cost as much. Raises
    `ConfigError` if the budget does not fit a single run."""
    config = loaded.config
    values = loaded.recipe_of(config.baseline)
    found = preview(*check_recipe(values), world_size=config.workers)
    run_s = config.workers * expected_s(found, calibrate(values, world_size=config.workers, seconds=seconds))
    num_runs = len(config.arm_names) * config.seeds
    num_held = min(num_runs, int(3600 * config.budget_device_hours / run_s))
    if num_held == 0:
        raise ConfigError(
            f"budget_device_hours={config.budget_device_hours:g} "
            f"({device_time_text(3600 * config.budget_device_hours)}) does not fit the first run, which takes about "
            f"{device_time_text(run_s)} here. All {number_of(num_runs, 'run')} take about "
            f"{run_s * num_runs / 3600:.2g} device-hours."
        )
    text = (
        f"cost: about {device_time_text(run_s * num_runs)} for {number_of(num_runs, 'run')} of "
        f"{device_time_text(run_s)}, as fast as the baseline's steps are here"
    )
    return text if num_held == num_runs else f"{text}; budget_device_hours fits {num_held} of them"


# Power


ITEMS_FACTORS = (2, 4, 8, 16, 32, 64)
"""Factors on the number of items that are tried for a guardrail."""


class GuardrailPower(NamedTuple):
    """Power of a guardrail for harmless candidates at the last look."""

    rule: GuardrailRule
    noise: PairedNoise | None
    """None if unknown; then the other fields are not finite."""
    passes: float
    """Share of harmless candidates that pass."""
    enough: float
    """Margin that 80% of them would pass."""


class SafetyPower(NamedTuple):
    """What a safety benchmark can show."""

    rule: SafetyRule
    draws: ItemDraws | None
    """None if the items cannot be counted yet."""

    @property
    def least_bound(self) -> float:
        """Return the upper bound of the rate if no item fails."""
        return float(rate_upper(0.0, float(self.draws.number if self.draws else 0)))


class CampaignCheck(NamedTuple):
    """What is known of a campaign before its first run."""

    num_runs: int
    noise: PairedNoise | None
    """Noise of the primary benchmarks; None if unknown before the first look."""
    looks: list[LookPower]
    otherwise: list[LookPower]
    """Power with the other `rule.over_seeds`; empty if a look has too few seeds for it."""
    guardrails: list[GuardrailPower]
    safety: list[SafetyPower]
    warnings: list[str]
    """Missing files, and hints if the power is too low."""


def check_campaign(loaded: LoadedCampaign, clock: Clock) -> CampaignCheck:
    """Check a campaign's file before anything starts: its arms, its declaration if there is one, and its power."""
    config = loaded.config
    num_runs = check_arms(loaded, is_declared=loaded.is_declared)
    check_declaration(loaded, clock)
    found = NoiseEstimator(loaded)
    noise, looks, otherwise = found.of(config.rule.primary), [], []
    if noise is not None:
        looks = _looks(config, noise, config.rule.over_seeds)
        if config.all_looks[0] >= MIN_SEEDS:
            otherwise = _looks(config, noise, "mean" if config.rule.over_seeds == "trimmed" else "trimmed")
    guardrails = [
        _of_guardrail(guardrail, found.of((guardrail.benchmark,)), config.seeds) for guardrail in config.rule.guardrails
    ]
    safety = [SafetyPower(entry, found.draws((entry.benchmark,))) for entry in config.rule.safety]
    warnings = [warning_text(warning, with_hint=True) for warning in found.data_warnings()]
    warnings += _of_looks(config, noise, looks) if noise is not None else []
    warnings += _of_guards(guardrails, safety, config.seeds)
    warnings += map(warning_text, warnings_of_clusters(config.differing_clusters()))
    texts = [f"{path} does not exist yet; the first look will need it" for path in _missing_files(loaded)]
    texts += warnings
    return CampaignCheck(num_runs, noise, looks, otherwise, guardrails, safety, texts)


def _looks(config: CampaignConfig, noise: PairedNoise, over_seeds: OverSeeds) -> list[LookPower]:
    return power_of_looks(
        config.look_plan(),
        config.rule.thresholds(),
        noise.components,
        num_items=noise.draws.number,
        over_seeds=over_seeds,
    )


def power_lines(found: CampaignCheck, *, over_seeds: OverSeeds) -> list[str]:
    """Return the lines for `--check`."""
    lines = [
        "power: unknown before the first look: no campaign on record measured these primary benchmarks, and "
        "their scores are not shares of items that can be counted now"
    ]
    if found.noise is not None:
        unit = found.noise.unit
        lines = [f"power, {found.noise.source}:", *(_look_line(look, unit) for look in found.looks)]
        if found.otherwise:
            other = "without the best and the worst seed (over_seeds: trimmed)"
            lines.append(f"  {other if over_seeds == 'mean' else 'with every seed (over_seeds: mean)'}:")
            lines += [f"  {_look_line(entry, unit)}" for entry in found.otherwise]
    return [*lines, *map(_guardrail_line, found.guardrails), *map(_safety_line, found.safety)]


def _look_line(entry: LookPower, unit: str) -> str:
    return (
        f"  look at {number_of(entry.num_seeds, 'seed')}: {_scaled_text(entry, unit)}; of candidates that are "
        f"worth having it scales {chance_text(entry.scales)}, stops {chance_text(entry.stops)}"
        + (f", gives up on {chance_text(entry.gives_up)}" if entry.gives_up >= 0.005 else "")
    )


def _scaled_text(entry: LookPower, unit: str) -> str:
    if is_beyond(entry.finds, unit):
        return "scales no gain that a share can have 80% of the time"
    return f"scales a gain of {effect_text(entry.finds, unit, signed=False)} 80% of the time"


def _guardrail_line(entry: GuardrailPower) -> str:
    name = f"  guardrail {entry.rule.benchmark}"
    if entry.noise is None:
        return f"{name}: unknown before the first look; no campaign on record measured it, and it is not a share"
    unit = entry.noise.unit
    return (
        f"{name}, margin {bound_text(entry.rule.margin, unit)}, on {entry.noise.draws.text()}: "
        f"passes {chance_text(entry.passes)} of candidates that do no harm; 80% with "
        + ("no margin that a share can have" if is_beyond(entry.enough, unit) else _margin(entry.enough, unit))
    )


def _margin(margin: float, unit: str) -> str:
    return f"a margin of {effect_text(margin, unit, signed=False)}"


def _safety_line(entry: SafetyPower) -> str:
    name = f"  safety {entry.rule.benchmark}, at most {rate_text(entry.rule.max_rate)}"
    if entry.draws is None:
        return f"{name}: its items cannot be counted before the first look"
    return f"{name}: {entry.draws.text()} without a failure show {rate_text(entry.least_bound)}"


def _of_guardrail(rule: GuardrailRule, noise: PairedNoise | None, num_seeds: int) -> GuardrailPower:
    if noise is None:
        return GuardrailPower(rule, None, math.nan, math.nan)
    number = noise.draws.number
    passes = _passes(rule.margin, noise, num_seeds=num_seeds, num_items=number)
    allowed, components = _allowance(noise, number)
    design = {"num_seeds": num_seeds, "num_items": number}
    enough = allowed + minimum_detectable_effect(components, **design)
    return GuardrailPower(rule, noise, passes, enough)


def _passes(margin: float, noise: PairedNoise, *, num_seeds: int, num_items: int) -> float:
    return pass_probability(
        margin, noise.components, num_seeds=num_seeds, num_items=num_items, is_share=noise.unit == "share"
    )


def _allowance(noise: PairedNoise, num_items: int) -> tuple[float, VarianceComponents]:
    return rare_event_allowance(noise.components, num_items=num_items, is_share=noise.unit == "share")


def _of_looks(config: CampaignConfig, noise: PairedNoise, looks: list[LookPower]) -> list[str]:
    warnings = [
        (
            f"the look at {look.num_seeds} seeds cannot decide: of the candidates that are worth having it "
            f"would scale {chance_text(look.scales)}, and end on {chance_text(look.stops + look.gives_up)} "
            "without a "
            "gain. Leave it out of looks, or take it with more seeds."
        )
        for look in looks[:-1]
        if look.stops + look.gives_up > max(MAX_LOST, look.scales)
    ]
    if not looks[-1].is_enough:
        message = (
            "the campaign lacks power: of the candidates that are worth having its last look would scale "
            f"{chance_text(looks[-1].scales)}. {_power_hint(config, noise)}"
        )
        warnings.append(message)
    return warnings


def _of_guards(guardrails: list[GuardrailPower], safety: list[SafetyPower], num_seeds: int) -> list[str]:
    """Return warnings about guardrails that would reject harmless candidates, and safety benchmarks that cannot
    pass."""
    known = [guardrail for guardrail in guardrails if guardrail.noise is not None]
    texts = [
        f"guardrail '{entry.rule.benchmark}' lacks power: by the last look it would pass "
        f"{chance_text(entry.passes)} of the candidates that do no harm, so most could not be scaled. "
        f"{_guardrail_hint(entry, num_seeds)}"
        for entry in known
        if entry.passes < MIN_FOUND
    ]
    if not texts and (together := math.prod(entry.passes for entry in known)) < MIN_FOUND:
        texts = [
            f"the {len(known)} guardrails lack power together: all of them would pass "
            f"{chance_text(together)} of the candidates that do no harm. More items, more seeds, or wider "
            "margins."
        ]
    texts += [
        f"safety benchmark '{entry.rule.benchmark}' cannot pass: {entry.draws.text()} without "
        f"any failure still leave a rate of {rate_text(entry.least_bound)}, and at most "
        f"{rate_text(entry.rule.max_rate)} is allowed. It takes "
        f"{_draws_text(entry.draws, trials_needed(entry.rule.max_rate))}."
        for entry in safety
        if entry.draws is not None and entry.least_bound > entry.rule.max_rate
    ]
    return texts


def _guardrail_hint(entry: GuardrailPower, num_seeds: int) -> str:
    """Return a hint: the sufficient margin, or the seeds or items for the declared one."""
    assert entry.noise is not None
    margin, draws = entry.rule.margin, entry.noise.draws
    num_items = draws.number
    allowed, components = _allowance(entry.noise, num_items)
    unit = entry.noise.unit
    parts = [] if is_beyond(entry.enough, unit) else [_margin(entry.enough, unit)]
    if seeds := seeds_needed(margin - allowed, components, num_items=num_items):
        parts.append(f"{seeds} seeds")
    for factor in ITEMS_FACTORS:
        if _passes(margin, entry.noise, num_seeds=num_seeds, num_items=factor * num_items) >= POWER:
            parts.append(_draws_text(draws, factor * num_items, instead=True))
            break
    if not parts:
        return f"Neither a margin, nor {MAX_SEEDS} seeds, nor {ITEMS_FACTORS[-1]} times as many items would do."
    return f"For {POWER:.0%}: {' or '.join(parts)}."


def _draws_text(draws: ItemDraws, number: int, *, instead: bool = False) -> str:
    """Return a number of draws as text, with a note if the whole dataset has fewer."""
    text = draws.text(number) + (f" instead of {draws.number:,}" if instead else "")
    if draws.most is None or number <= draws.most:
        return text
    return f"{text}, more than the dataset has (about {draws.most:,} if all of it were held out)"


def _power_hint(config: CampaignConfig, noise: PairedNoise) -> str:
    plan, rule = config.look_plan(), config.rule.thresholds()
    design = sufficient_design(
        plan, rule, noise.components, num_items=noise.draws.number, over_seeds=config.rule.over_seeds
    )
    if design is None:
        return f"Neither seeds nor items would do: ask for more than {bound_text(rule.least_effect, noise.unit)}."
    runs = (1 + len(config.candidates)) * (design.num_seeds - config.seeds)
    parts = [f"{design.num_seeds} seeds ({number_of(runs, 'more run')})"] if runs else []
    if design.items_factor > 1:
        parts.append(_draws_text(noise.draws, design.items_factor * noise.draws.number, instead=True))
    return f"The cheapest fix, for {MIN_FOUND:.0%}: {' and '.join(parts)}."
