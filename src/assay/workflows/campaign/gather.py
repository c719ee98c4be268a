"""Gathers the facts for a decision, so that the decision itself reads no files.

scored runs of both arms, with what they cost -----+
coverage, drill, plan: files that the rule names --+--> Facts --> evaluation.decision
campaigns at other scales --> forecast ------------+
sealed holdout, once all other gates pass ---------+
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.base.digest import sha256_of_json
from assay.base.errors import AssayError, DataError
from assay.base.parsing.nesting import parse_json
from assay.base.value_text import kind_text
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import split_view
from assay.decision.config import PlanRule, PredictionsBenchmark, StandardRule
from assay.decision.facts import (
    Facts,
    FileFacts,
    ForecastFacts,
    PlanFacts,
    TargetGain,
    facts_of,
)
from assay.planning.program.offer import Offer
from assay.records.coverage import Coverage
from assay.records.decision import Source
from assay.records.drill import DrillReport
from assay.records.evidence import Look
from assay.training.recipe import recipe_of
from assay.workflows.campaign.folder import OpenCampaign
from assay.workflows.campaign.forecast import forecast_of
from assay.workflows.campaign.scores import ScoredRun, benchmark_scores, secondary_scores
from assay.workflows.campaign.sealed_holdout import LookContext, sealed_holdout_facts
from assay.workflows.run import load_run


def gather(
    campaign: OpenCampaign,
    candidate: str,
    look: Look,
    baseline_runs: Sequence[ScoredRun],
    candidate_runs: Sequence[ScoredRun],
    context: LookContext,
) -> Facts:
    """Gather the facts about a candidate at a look. Raises `DataError` for data that cannot be read or
    compared.

    Opens the sealed benchmark, if there is one and everything else supports `scale`.
    """
    config, base_dir = campaign.config, Path(campaign.record.base_dir)
    home = campaign.home.folder.resolve()
    runs = [*baseline_runs, *candidate_runs]
    facts = facts_of(
        config,
        candidate,
        look,
        {benchmark.name: benchmark_scores(benchmark.name, runs, home) for benchmark in config.open_benchmarks},
        [run.record for run in runs],
        recipe=load_run(campaign.home, candidate_runs[0].record.run_id).recipe,
        files=file_facts(config.rule, base_dir),
    )
    facts = facts._replace(secondary=tuple(secondary_scores(campaign, runs, context.ledger)))
    scaling = config.rule.scaling
    if scaling is not None and scaling.record is not None:
        facts = facts._replace(forecast=_forecast_on_file(base_dir / scaling.record))
    elif scaling is not None:
        facts = facts._replace(forecast=forecast_of(campaign, facts, scaling, context.ledger))
    facts = facts._replace(most_items=_most_items(campaign, facts, baseline_runs[0].record.run_id))
    return facts._replace(holdout=sealed_holdout_facts(campaign, facts, runs, context))


def _most_items(campaign: OpenCampaign, facts: Facts, run_id: str) -> dict[str, int]:
    """Return the maximum number of items by benchmark, for benchmarks on held-out rows; empty if the dataset is
    gone."""
    data = recipe_of(load_run(campaign.home, run_id)).data
    split = data.split.model_copy(update={"drop_leaks": False})  # finding leaks would read all tokens
    try:
        view = split_view(Dataset.open(Path(data.dataset)), split, "validation")
    except AssayError:
        return {}
    times = view.dataset.manifest.num_rows / int(view.num_rows.sum())
    return {
        benchmark.name: int(times * facts.benchmarks[benchmark.name].differences.shape[1])
        for benchmark in campaign.config.open_benchmarks
        if isinstance(benchmark, PredictionsBenchmark)
    }


def file_facts(rule: StandardRule, folder: Path) -> FileFacts:
    """Read the records that the rule names, relative to `folder`."""
    coverage = drill = None
    if rule.coverage is not None:
        tree, source = _record_file(folder / rule.coverage, "the coverage matrix")
        coverage = Coverage.from_tree(tree, source=source.path), source
    if rule.drill not in (None, "audit"):
        name = "the record of a drill ('assay drill RECIPE --out FILE')"
        tree, source = _record_file(folder / rule.drill, name)
        drill = DrillReport.from_tree(tree, source=source.path), source
    return FileFacts(coverage, drill, None if rule.plan is None else _plan(rule.plan, folder))


def _plan(rule: PlanRule, folder: Path) -> PlanFacts:
    tree, source = _record_file(folder / rule.record, "the plan's simulation")
    safety = tree.get("safety")
    if not isinstance(safety, dict):
        raise DataError(f"{source.path}: not an offer: it has no 'safety'. Write it with 'assay plan offer'.")
    over_budget = _number(safety, "p_over_budget", source)
    on_time = _number(safety, "p_on_time", source)
    decision = Offer.from_tree(tree, source=source.path).decision_text() if "calendar" in tree else ""
    return PlanFacts(on_time, 1.0 - over_budget, source, decision)


def _forecast_on_file(path: Path) -> ForecastFacts:
    tree, source = _record_file(path, "the forecast")
    return ForecastFacts(TargetGain(_number(tree, "low", source), _number(tree, "value", source)), "", (source,))


def _record_file(path: Path, name: str) -> tuple[dict[str, Any], Source]:
    """Return the JSON object and its source. Raises `DataError` if the file is missing or not JSON."""
    try:
        tree = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path}: {name} is missing, and a gate needs it. Create it first.") from error
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); expected {name}.") from error
    if not isinstance(tree, dict):
        raise DataError(f"{path}: expected {name}, a JSON object, found {kind_text(tree)}.")
    return tree, Source(path=str(path), sha256=sha256_of_json(tree))


def _number(tree: Mapping[str, Any], key: str, source: Source) -> float:
    value = tree.get(key)
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"{source.path}: '{key}' is {value!r}; expected a number.")
    return float(value)
