"""The arms of a campaign as runs, one for each seed, checked before the first one starts.

A run's id is derived from (campaign, arm, seed), so a campaign that was killed finds its runs again.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from assay.base.config import LoadedConfig
from assay.base.errors import ConfigError
from assay.base.names import meant
from assay.data.dataset.columns import ITEM, holds_lists
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import key_column
from assay.data.loader.lane_shares import LaneShares
from assay.decision.candidate import known_good_recipe, patched
from assay.decision.config import (
    Benchmark,
    CampaignConfig,
    HarmCondition,
    PredictionsBenchmark,
    SuiteBenchmark,
)
from assay.decision.row_scores import METRICS
from assay.evals.compatibility import supported_suite
from assay.records.run import Run
from assay.statistics.predictions import CLUSTER, ROW_ID
from assay.store.home import Home
from assay.training.recipe import Recipe, recipe_of, recipe_sha256
from assay.training.trainer.method_config import (
    BinaryPredictions,
    ClassPredictions,
    MethodConfig,
    Predictions,
)
from assay.workflows.campaign.folder import OpenCampaign
from assay.workflows.run import check_new, check_recipe, count_steps, create_run, load_run


def check_arms(config: CampaignConfig, *, base_dir: Path, is_declared: bool) -> int:
    """Check the recipe of every arm on its dataset before anything starts; return the number of runs.

    Fewer checks apply to a campaign that is declared already, which continues as declared.
    """
    recipe, _ = known_good_recipe(base_dir / config.recipe)

    def arm(name: str, patch: dict[str, Any]) -> tuple[Recipe, Dataset]:
        found = check_recipe(patched(recipe, patch, arm=name, seed=config.first_seed))
        LaneShares(found[0].loader.lanes, config.workers)
        if not is_declared:
            try:
                # The notes are ignored: they are about intermediate evaluations, and a campaign uses the last weights.
                check_new(found[0], count_steps(*found).planned, changed=patch)
            except ConfigError as error:
                raise ConfigError(f"arm '{name}': {error}") from error
            _check_suites(name, config, found[0].method, base_dir=base_dir)
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


def missing_files(config: CampaignConfig, *, base_dir: Path) -> list[str]:
    """Return the files that the rule names and that do not exist yet, as `key: path`."""
    rule = config.rule
    requested = {
        "rule.coverage": rule.coverage,
        "rule.drill": None if rule.drill == "audit" else rule.drill,
        "rule.scaling.record": rule.scaling.record if rule.scaling else None,
        "rule.plan.record": rule.plan.record if rule.plan else None,
    }
    return [f"{key}: {base_dir / path}" for key, path in requested.items() if path and not (base_dir / path).is_file()]


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
    )


def run_id_of(campaign: str, arm: str, seed: int) -> str:
    """Return the id of an arm's run with one seed."""
    return f"{campaign}-{arm}-s{seed}"


def arm_run(campaign: OpenCampaign, arm: str, seed: int) -> Run:
    """Return the run's record, created if needed. Raises `ConfigError` if a run exists with another recipe."""
    config = campaign.config
    patch = {} if arm == config.baseline else config.candidate(arm).patch
    recipe = patched(campaign.recipe, patch, arm=arm, seed=seed)
    run_id = run_id_of(config.name, arm, seed)
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
