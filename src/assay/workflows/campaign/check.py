"""Checks a campaign before its first run: the recipe of every arm, its expected cost, and the power of its looks and
guardrails.

A harmless candidate passes a guardrail as often as a gain of the margin's size would be detected, because the bound is
the same with its sign reversed, except for the allowance for rare harm. All guardrails must pass, so their
probabilities multiply.
"""

import math
from collections.abc import Iterator
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
    HarmCondition,
    PredictionsBenchmark,
    SuiteBenchmark,
)
from assay.decision.row_scores import METRICS
from assay.evals.compatibility import supported_suite
from assay.records.statement import Statement
from assay.reporting.views.statements import device_time_text, is_beyond
from assay.statistics.campaign.look_power import LookPower, power_of_looks, sufficient_design
from assay.statistics.failure_rate import rate_upper, trials_needed
from assay.statistics.guardrail import pass_probability, rare_event_allowance
from assay.statistics.power import MAX_SEEDS, POWER, VarianceComponents, minimum_detectable_effect, seeds_needed
from assay.statistics.predictions import CLUSTER, ROW_ID
from assay.statistics.seeds.trimmed import MIN_SEEDS, OverSeeds
from assay.statistics.warnings import MAX_LOST, MIN_FOUND
from assay.training.recipe import Recipe
from assay.training.trainer.method_config import (
    BinaryPredictions,
    ClassPredictions,
    MethodConfig,
    Predictions,
)
from assay.workflows.calibration import calibrate
from assay.workflows.campaign.elsewhere import recorded_run
from assay.workflows.campaign.folder import LoadedCampaign, check_declaration
from assay.workflows.campaign.paired_noise import ItemDraws, NoiseEstimator, PairedNoise
from assay.workflows.preview import expected_s, preview
from assay.workflows.run import check_new, check_recipe


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
                check_new(*found, changed=patch)
            except ConfigError as error:
                raise ConfigError(f"arm '{name}': {error}") from error
            _check_suites(name, config, found[0].method, base_dir=loaded.base_dir)
        _check_scores(name, config, found[0].method.predictions)
        _check_columns(name, config, *found)
        return found

    for name in config.arm_names:
        if not config.has_recipe(name):
            _check_elsewhere(loaded, name)
    if config.recipe is not None:
        baseline = arm(config.baseline, {})
        if not is_declared:
            _check_sizes(config, baseline[0].method.predictions)
        for candidate in config.candidates:
            if candidate.patch:
                _check_candidate(candidate.name, config, baseline, arm(candidate.name, candidate.patch))
    return (1 + len(config.candidates)) * config.seeds


def _check_elsewhere(loaded: LoadedCampaign, arm: str) -> None:
    """Raise `ConfigError` if a run of an arm that assay does not train cannot be judged, or a suite cannot judge it."""
    runs = loaded.config.arm(arm).runs
    for run_id in runs:
        recorded_run(loaded.home, run_id, of=f"arm '{arm}'")
    for benchmark in loaded.config.benchmarks:
        assert isinstance(benchmark, SuiteBenchmark) and benchmark.suite is not None, "the configuration was checked"
        check_suite(benchmark, loaded.base_dir / benchmark.suite, None, owner=f"arm '{arm}'")


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


def check_suite(benchmark: SuiteBenchmark, path: Path, method: MethodConfig | None, *, owner: str) -> None:
    """Raise an error if the suite cannot be read, does not fit the method, or lacks the campaign's benchmark. Without a
    method it must fit a language model."""
    name, suite = benchmark.benchmark or benchmark.name, supported_suite(path, method, owner=owner)
    known = [item.name for item in suite.benchmarks]
    if name not in known:
        raise ConfigError(f"{path}: has no benchmark '{name}', which the campaign names; it has {', '.join(known)}.")


def _missing_files(loaded: LoadedCampaign) -> list[Statement]:
    """Return a warning about each file that the rule names and that does not exist yet."""
    rule, folder = loaded.config.rule, loaded.base_dir
    requested = {
        "rule.coverage": rule.coverage,
        "rule.drill": None if rule.drill == "audit" else rule.drill,
        "rule.scaling.record": rule.scaling.record if rule.scaling else None,
        "rule.plan.record": rule.plan.record if rule.plan else None,
    }
    return [
        Statement(code="file missing", values={"key": key, "path": str(folder / path)})
        for key, path in requested.items()
        if path and not (folder / path).is_file()
    ]


def expected_cost(loaded: LoadedCampaign, *, seconds: float) -> Statement:
    """Measure baseline steps for `seconds`; return the cost of all runs, if candidates cost as much. Raises
    `ConfigError` if the budget does not fit a single run."""
    config = loaded.config
    values = loaded.recipe_of(config.baseline)
    found = preview(*check_recipe(values), world_size=config.workers)
    run_s = config.workers * expected_s(found, calibrate(values, world_size=config.workers, seconds=seconds))
    num_runs, budget_s = len(config.arm_names) * config.seeds, 3600 * config.budget_device_hours
    num_fitting = min(num_runs, int(budget_s / run_s))
    if num_fitting == 0:
        raise ConfigError(
            f"budget_device_hours={config.budget_device_hours:g} ({device_time_text(budget_s)}) does not fit the first "
            f"run, which takes about {device_time_text(run_s)} here. All {number_of(num_runs, 'run')} take about "
            f"{run_s * num_runs / 3600:.2g} device-hours."
        )
    cost = {"total_s": run_s * num_runs, "run_s": run_s, "runs": num_runs, "fitting": num_fitting}
    return Statement(code="cost of runs" if num_fitting == num_runs else "cost above budget", values=cost)


# Power


ITEMS_FACTORS = (2, 4, 8, 16, 32, 64)
"""Factors on the number of items that are tried for a guardrail."""


class CampaignCheck(NamedTuple):
    """What is known of a campaign before its first run."""

    num_runs: int
    power: list[Statement]
    """Power of the looks, guardrails and safety benchmarks, line by line."""
    warnings: list[Statement]
    """Missing files, problems of the data, and what lacks power."""


def check_campaign(loaded: LoadedCampaign, clock: Clock) -> CampaignCheck:
    """Check a campaign's file before anything starts: its arms, its declaration if there is one, and its power."""
    config, noise = loaded.config, NoiseEstimator(loaded)
    num_runs = check_arms(loaded, is_declared=loaded.is_declared)
    check_declaration(loaded, clock)
    parts = (
        _power_of_looks(config, noise.of(config.rule.primary)),
        _power_of_guardrails(config, noise),
        _power_of_safety(config, noise),
    )
    warnings = _missing_files(loaded)
    warnings += [
        Statement(code="data warning", values={"rule": warning.rule, "warning": warning.statement().model_dump()})
        for warning in noise.data_warnings()
    ]
    warnings += [warning for _, lacking in parts for warning in lacking]
    columns = config.differing_clusters
    if len({*columns.values()}) > 1:
        warnings.append(Statement(code="clusters differ", values={"columns": columns}))
    return CampaignCheck(num_runs, [line for lines, _ in parts for line in lines], warnings)


def _power_of_looks(config: CampaignConfig, noise: PairedNoise | None) -> tuple[list[Statement], list[Statement]]:
    """Return the power of each look, also with the other `rule.over_seeds`, and what lacks it."""
    if noise is None:
        return [Statement(code="power unknown")], []
    looks, is_mean = _looks(config, noise, config.rule.over_seeds), config.rule.over_seeds == "mean"
    lines = [Statement(code="power of looks", values={"source": noise.source})]
    lines += [_look_line(look, noise.unit, is_other=False) for look in looks]
    if config.all_looks[0] >= MIN_SEEDS:
        lines.append(Statement(code="power if trimmed" if is_mean else "power of the mean"))
        others = _looks(config, noise, "trimmed" if is_mean else "mean")
        lines += [_look_line(look, noise.unit, is_other=True) for look in others]
    return lines, [*_looks_without_power(config, noise, looks)]


def _looks(config: CampaignConfig, noise: PairedNoise, over_seeds: OverSeeds) -> list[LookPower]:
    return power_of_looks(
        config.look_plan(),
        config.rule.thresholds(),
        noise.components,
        num_items=noise.draws.number,
        over_seeds=over_seeds,
    )


def _look_line(look: LookPower, unit: str, *, is_other: bool) -> Statement:
    shares = {"scales": look.scales, "stops": look.stops, "gives_up": look.gives_up}
    values = {"seeds": look.num_seeds, "finds": look.finds, "unit": unit, "is_other": is_other, **shares}
    return Statement(code="power of look", values=values)


def _looks_without_power(config: CampaignConfig, noise: PairedNoise, looks: list[LookPower]) -> Iterator[Statement]:
    for look in looks[:-1]:
        if look.stops + look.gives_up > max(MAX_LOST, look.scales):
            shares = {"scales": look.scales, "ends": look.stops + look.gives_up}
            yield Statement(code="look without power", values={"seeds": look.num_seeds, **shares})
    if not looks[-1].is_enough:
        values = {"scales": looks[-1].scales, "hint": _design_with_power(config, noise)}
        yield Statement(code="campaign without power", values=values)


def _design_with_power(config: CampaignConfig, noise: PairedNoise) -> Statement:
    """Return the seeds or items that would give the campaign power."""
    plan, rule = config.look_plan(), config.rule.thresholds()
    design = sufficient_design(
        plan, rule, noise.components, num_items=noise.draws.number, over_seeds=config.rule.over_seeds
    )
    if design is None:
        return Statement(code="no design has power", values={"least": rule.least_effect, "unit": noise.unit})
    runs = (1 + len(config.candidates)) * (design.num_seeds - config.seeds)
    fixes = [Statement(code="seeds and runs", values={"seeds": design.num_seeds, "runs": runs})] if runs else []
    if design.items_factor > 1:
        fixes.append(_draws(noise.draws, design.items_factor * noise.draws.number, now=noise.draws.number))
    return Statement(code="cheapest design", values={"power": MIN_FOUND, "fixes": fixes})


def _power_of_guardrails(config: CampaignConfig, estimator: NoiseEstimator) -> tuple[list[Statement], list[Statement]]:
    """Return the share of harmless candidates that each guardrail passes at the last look, and which lack power."""
    lines, lacking, shares = [], [], []
    for rule in config.rule.guardrails:
        noise = estimator.of((rule.benchmark,))
        if noise is None:
            lines.append(Statement(code="guardrail unknown", values={"benchmark": rule.benchmark}))
            continue
        design = {"num_seeds": config.seeds, "num_items": noise.draws.number}
        allowed, components = _allowance(noise, noise.draws.number)
        enough = allowed + minimum_detectable_effect(components, **design)
        shares.append(_passes(rule.margin, noise, **design))
        power = {"benchmark": rule.benchmark, "unit": noise.unit, "passes": shares[-1], "enough": enough}
        values = {**power, "margin": rule.margin, "draws": noise.draws.counted(noise.draws.number)}
        lines.append(Statement(code="power of guardrail", values=values))
        if shares[-1] < MIN_FOUND:
            hint = _guardrail_hint(rule.margin, enough, noise, config.seeds)
            lacking.append(Statement(code="guardrail without power", values={**power, "hint": hint}))
    if not lacking and (together := math.prod(shares)) < MIN_FOUND:
        values = {"guardrails": len(shares), "passes": together}
        lacking.append(Statement(code="guardrails without power", values=values))
    return lines, lacking


def _passes(margin: float, noise: PairedNoise, *, num_seeds: int, num_items: int) -> float:
    return pass_probability(
        margin, noise.components, num_seeds=num_seeds, num_items=num_items, is_share=noise.unit == "share"
    )


def _allowance(noise: PairedNoise, num_items: int) -> tuple[float, VarianceComponents]:
    return rare_event_allowance(noise.components, num_items=num_items, is_share=noise.unit == "share")


def _guardrail_hint(margin: float, enough: float, noise: PairedNoise, num_seeds: int) -> Statement:
    """Return the sufficient margin, or the seeds or items for the declared one."""
    num_items, unit = noise.draws.number, noise.unit
    allowed, components = _allowance(noise, num_items)
    fixes = []
    if not is_beyond(enough, unit):
        fixes.append(Statement(code="margin", values={"margin": enough, "unit": unit}))
    if seeds := seeds_needed(margin - allowed, components, num_items=num_items):
        fixes.append(Statement(code="so many seeds", values={"seeds": seeds}))
    for factor in ITEMS_FACTORS:
        if _passes(margin, noise, num_seeds=num_seeds, num_items=factor * num_items) >= POWER:
            fixes.append(_draws(noise.draws, factor * num_items, now=num_items))
            break
    if not fixes:
        return Statement(code="no guardrail has power", values={"seeds": MAX_SEEDS, "factor": ITEMS_FACTORS[-1]})
    return Statement(code="guardrail fixes", values={"power": POWER, "fixes": fixes})


def _power_of_safety(config: CampaignConfig, estimator: NoiseEstimator) -> tuple[list[Statement], list[Statement]]:
    """Return the rate that each safety benchmark bounds if no item fails, and which cannot pass."""
    lines, lacking = [], []
    for rule in config.rule.safety:
        draws = estimator.draws((rule.benchmark,))
        values: dict[str, Any] = {"benchmark": rule.benchmark, "allowed": rule.max_rate}
        if draws is None:
            lines.append(Statement(code="safety unknown", values=values))
            continue
        bound = float(rate_upper(0.0, float(draws.number)))
        values |= {"draws": draws.counted(draws.number), "bound": bound}
        lines.append(Statement(code="power of safety", values=values))
        if bound > rule.max_rate:
            needed = _draws(draws, trials_needed(rule.max_rate))
            lacking.append(Statement(code="safety cannot pass", values={**values, "needed": needed}))
    return lines, lacking


def _draws(draws: ItemDraws, number: int, *, now: int = 0) -> Statement:
    """Return a number of draws to have, instead of `now` if given, and whether the whole dataset has fewer."""
    has_enough = draws.most is None or number <= draws.most
    values = {"draws": draws.counted(number), "now": now, "most": draws.most}
    return Statement(code="draws" if has_enough else "more draws than rows", values=values)
