"""The evidence of a look: scores of finished runs on every benchmark, and the facts that a decision needs, so that the
decision itself reads no files.

    scored runs of both arms, with what they cost -----+
    coverage, drill, plan: files that the rule names --+--> Facts --> decision
    campaigns at other scales --> forecast ------------+
    sealed holdout, once all other gates pass ---------+

A result counts if it is of the run's last weights and of the benchmark as the campaign defines it; missing ones are
computed here. The opening of the sealed benchmark is recorded before anything is scored, so a killed campaign continues
with it, and nobody can look first and then deny it. A holdout that an earlier campaign opened, or on which a run was
scored before, is no longer valid: later choices may depend on it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from assay.base.clock import Clock
from assay.base.digest import sha256_of_json
from assay.base.errors import AssayError, DataError
from assay.base.parsing.nesting import parse_json
from assay.base.value_text import kind_text
from assay.data.dataset.dataset import Dataset
from assay.data.dataset.split import split_view
from assay.decision.config import Benchmark, PlanRule, PredictionsBenchmark, ScalingRule, StandardRule, SuiteBenchmark
from assay.decision.facts import (
    BenchmarkFacts,
    Facts,
    ForecastFacts,
    HoldoutFacts,
    PlanFacts,
    Role,
    benchmark_facts,
    facts_of,
    role_of,
)
from assay.decision.gates import passes_except_holdout
from assay.decision.row_scores import definition_sha256, result_of_predictions, scored_predictions
from assay.evals.config import read_suite
from assay.evals.items import suite_sha256
from assay.evals.queue import request
from assay.planning.program.offer import Offer
from assay.records.campaign import ROWS_NOT_OBSERVED, CampaignRun, HoldoutOpening
from assay.records.coverage import Coverage
from assay.records.decision import Decision, Look, Source
from assay.records.drill import DrillReport
from assay.records.evaluation import AnyEvaluation
from assay.records.run import Run
from assay.records.statement import Statement
from assay.reporting.views.runs.run import model_numbers
from assay.statistics.benchmark_items import (
    RESULT_FILE,
    load_result,
    read_score_matrix,
    result_folders,
    score_matrix,
)
from assay.statistics.predictions import predictions_of
from assay.statistics.scaling.from_runs import scale_of_run
from assay.statistics.scaling.gain import GainsAtScale, forecast_gain
from assay.store.home import Home
from assay.store.ledger.ledger import Ledger
from assay.training.recipe import recipe_of
from assay.workflows.bookkeeping import rebuild_run, writer_of
from assay.workflows.campaign.elsewhere import is_trained, last_checkpoint
from assay.workflows.campaign.folder import (
    OpenCampaign,
    newest_decisions,
    require_suites_as_declared,
)
from assay.workflows.campaign.train import ArmRun, device_seconds_of
from assay.workflows.evaluation.queue import queue_of, record_results, work
from assay.workflows.run import load_run

NEVER = 10**12
"""A step interval larger than any run, so only the last commit is due."""

OPENINGS = "sealed"
"""Folder of a campaign's openings, `CANDIDATE.json` each."""


class ScoredRun(NamedTuple):
    """A finished run and its results."""

    run: Run
    record: CampaignRun
    folders: dict[str, Path]
    """Folder of the result by benchmark."""


def gather(
    campaign: OpenCampaign,
    candidate: str,
    look: Look,
    baseline_runs: Sequence[ScoredRun],
    candidate_runs: Sequence[ScoredRun],
    scoring: "Scoring",
) -> Facts:
    """Gather the facts about a candidate at a look. Raises `DataError` for data that cannot be read or compared.

    Opens the sealed benchmark, if there is one and everything else supports `scale`.
    """
    config, base_dir = campaign.config, Path(campaign.record.base_dir)
    runs = [*baseline_runs, *candidate_runs]
    found = {
        benchmark.name: _benchmark_facts(campaign, benchmark, role_of(config, benchmark.name), runs)
        for benchmark in config.open_benchmarks
    }
    recipe = candidate_runs[0].run.recipe
    facts = facts_of(config, candidate, look, found, [run.record for run in runs], recipe=recipe)
    facts = facts._replace(
        **file_facts(config.rule, base_dir),
        secondary=tuple(_secondary_facts(config.secondary, runs, scoring.ledger)),
        most_items=_most_items(facts, config.open_benchmarks, baseline_runs[0].run),
    )
    scaling = config.rule.scaling
    if scaling is not None:
        is_on_file = scaling.record is not None
        forecast = _forecast_on_file(base_dir / str(scaling.record)) if is_on_file else None
        facts = facts._replace(forecast=forecast or _forecast(campaign, facts, scaling, scoring.ledger))
    return facts._replace(holdout=_holdout_facts(campaign, facts, runs, scoring))


# Scores of runs


def score_run(campaign: OpenCampaign, arm_run: ArmRun, scoring: "Scoring") -> ScoredRun:
    """Return a finished run with a result on every benchmark; those from predictions are computed here."""
    run, ledger = arm_run.run, scoring.ledger
    folders = {
        benchmark.name: _predictions_folder(benchmark, arm_run, ledger.evaluations(run.run_id)[-1], scoring)
        if isinstance(benchmark, PredictionsBenchmark)
        else suite_folder(campaign, benchmark, run, ledger, scoring.clock)
        for benchmark in campaign.config.open_benchmarks
    }
    audit = ledger.audit(run.run_id)
    verdict = audit.verdict if audit else "not audited"
    warned = model_numbers(ledger, run.run_id).warnings()
    record = CampaignRun(
        arm=arm_run.arm,
        seed=arm_run.seed,
        run_id=run.run_id,
        recipe_sha256=run.recipe_sha256,
        weights_digest=_last_weights(run, ledger),
        audit_verdict=ROWS_NOT_OBSERVED if run.is_recorded() and verdict not in ("pass", "fail") else verdict,
        num_attempts=max(1, len(ledger.attempts(run.run_id))),
        device_s=device_seconds_of(run.run_id, ledger),
        warnings=tuple(warning.statement() for warning in warned),
        warning_rules=tuple(warning.rule for warning in warned),
    )
    return ScoredRun(run, record, folders)


def score_finished_runs(campaign: OpenCampaign, arm: str, scoring: "Scoring") -> list[ScoredRun]:
    """Return the arm's finished and evaluated runs, seed by seed up to the first that is not; trains nothing."""
    found: list[ScoredRun] = []
    for seed in campaign.config.seed_numbers:
        run_id = campaign.config.run_id(arm, seed)
        if not campaign.home.has_run(run_id):
            break
        has_recipe = campaign.config.has_recipe(arm)
        arm_run = ArmRun(arm, seed, load_run(campaign.home, run_id) if has_recipe else campaign.home.run(run_id))
        if not scoring.ledger.evaluations(run_id):  # the ledger may have missed facts of the folder
            rebuild_run(scoring.ledger, arm_run.run)
        if not (scoring.ledger.evaluations(run_id) if has_recipe else is_trained(arm_run.run)):
            break
        found.append(score_run(campaign, arm_run, scoring))
    return found


def _predictions_folder(
    benchmark: PredictionsBenchmark, arm_run: ArmRun, evaluation: AnyEvaluation, scoring: "Scoring"
) -> Path:
    folder = Path(arm_run.run.run_dir) / "benchmarks" / benchmark.name
    definition = definition_sha256(benchmark, dataset=evaluation.dataset_fingerprint, split=evaluation.split)
    expected = (evaluation.weights_digest, definition)
    if (folder / RESULT_FILE).is_file():
        known = load_result(folder)
        if (known.weights_digest, known.benchmark_sha256) == expected:
            scoring.ledger.record_benchmark_result(known)
            return folder
    table = predictions_of(Path(arm_run.run.run_dir), evaluation)
    now_s = scoring.clock.now_s()
    result = result_of_predictions(
        benchmark, table, evaluation, arm=arm_run.arm, seed=arm_run.seed, evaluated_s=now_s, folder=folder
    )
    scoring.ledger.record_benchmark_result(result)
    return folder


def suite_folder(campaign: OpenCampaign, benchmark: SuiteBenchmark, run: Run, ledger: Ledger, clock: Clock) -> Path:
    """Return the folder of the result for the run's last weights; evaluate now if it is missing and a suite is
    named."""
    name = benchmark.benchmark or benchmark.name
    weights_digest = _last_weights(run, ledger)
    folder = _folder_of_result(name, run, weights_digest)
    if folder is None and benchmark.suite is not None:
        _evaluate_last(campaign.home, run, Path(campaign.record.base_dir) / benchmark.suite, clock)
        folder = _folder_of_result(name, run, weights_digest)
    if folder is None:
        raise DataError(
            f"run '{run.run_id}' has no result of benchmark '{name}' for its last weights. Name its suite in "
            "the campaign's file, or evaluate it with 'assay eval'; then run the campaign again, and it continues."
        )
    return folder


def _last_weights(run: Run, ledger: Ledger) -> str:
    """Return the digest of a run's last weights."""
    if run.is_recorded():
        return last_checkpoint(run).weights_digest
    return ledger.evaluations(run.run_id)[-1].weights_digest


ScoreSealed = Callable[[OpenCampaign, SuiteBenchmark, Run, Ledger, Clock], Path]
"""Scores a run's last weights on the sealed benchmark, or finds the scores; returns the folder of the result."""


class Scoring(NamedTuple):
    """What scoring a run needs besides the campaign."""

    ledger: Ledger
    clock: Clock
    score_sealed: ScoreSealed = suite_folder


def _folder_of_result(benchmark: str, run: Run, weights_digest: str) -> Path | None:
    """Return the folder of the newest result; older ones of a changed benchmark may exist."""
    found = [(load_result(folder), folder) for folder in result_folders(Path(run.run_dir))]
    same = [
        (result.evaluated_s, folder)
        for result, folder in found
        if result.benchmark == benchmark and result.weights_digest == weights_digest
    ]
    return max(same)[1] if same else None


def _evaluate_last(home: Home, run: Run, suite: Path, clock: Clock) -> None:
    """Evaluate the last commit, unless another worker does or did."""
    queue = queue_of(run, suite=str(suite.resolve()))
    only_the_last = queue.config.model_copy(update={"every_steps": NEVER})
    if run.is_recorded():
        last = last_checkpoint(run)  # may be of an earlier step than the last, and a session has no last one
        request(queue.store, last.step, last.weights_digest, queue.suite_sha256)
    with writer_of(home, run) as writer:
        work(queue._replace(config=only_the_last), writer, clock=clock, follow=not run.is_session())
        record_results(queue, writer)


# Facts about benchmarks


def _benchmark_facts(
    campaign: OpenCampaign, benchmark: PredictionsBenchmark | SuiteBenchmark, role: Role, runs: Sequence[ScoredRun]
) -> BenchmarkFacts:
    """Return the facts in the results of the runs, the baseline first, by seed."""
    home, folders = campaign.home.folder.resolve(), [run.folders[benchmark.name] for run in runs]
    results = tuple(load_result(folder) for folder in folders)
    sources = tuple(
        Source(path=_path_in(home, folder / RESULT_FILE), sha256=result.digest())
        for folder, result in zip(folders, results, strict=True)
    )
    return benchmark_facts(benchmark, role, read_score_matrix(folders), results, sources)


def _path_in(home: Path, path: Path) -> str:
    return path.relative_to(home).as_posix() if path.is_relative_to(home) else str(path)


def _secondary_facts(
    benchmarks: Sequence[PredictionsBenchmark], runs: Sequence[ScoredRun], ledger: Ledger
) -> Iterator[BenchmarkFacts]:
    """Yield further scores of the rows of the primary benchmarks, if they can be computed; an AUC needs both
    classes."""
    for benchmark in benchmarks:
        with suppress(AssayError):
            scored = []
            for run in runs:
                evaluation = ledger.evaluations(run.record.run_id)[-1]
                table = predictions_of(Path(run.run.run_dir), evaluation)
                arm, seed = run.record.arm, run.record.seed
                scored.append(scored_predictions(benchmark, table, evaluation, arm=arm, seed=seed, evaluated_s=0.0))
            results = tuple(result for result, _ in scored)
            yield benchmark_facts(benchmark, "other", score_matrix(scored), results)


def _most_items(facts: Facts, benchmarks: Sequence[Benchmark], run: Run) -> dict[str, int]:
    """Return the maximum number of items by benchmark, for benchmarks on held-out rows; empty if the dataset is
    gone."""
    if run.is_recorded():
        return {}
    data = recipe_of(run).data
    split = data.split.model_copy(update={"drop_leaks": False})  # finding leaks would read all tokens
    try:
        view = split_view(Dataset.open(Path(data.dataset)), split, "validation")
    except AssayError:
        return {}
    times = view.dataset.manifest.num_rows / int(view.num_rows.sum())
    return {
        benchmark.name: int(times * facts.benchmarks[benchmark.name].differences.shape[1])
        for benchmark in benchmarks
        if isinstance(benchmark, PredictionsBenchmark)
    }


# Facts in files


def file_facts(rule: StandardRule, folder: Path) -> dict[str, Any]:
    """Return the records that the rule names, relative to `folder`, by their name in `Facts`."""
    facts: dict[str, Any] = {}
    if rule.coverage is not None:
        tree, source = _record_file(folder / rule.coverage, "the coverage matrix")
        facts["coverage"] = Coverage.from_tree(tree, source=source.path), source
    if rule.drill not in (None, "audit"):
        name = "the record of a drill ('assay train drill RECIPE --out FILE')"
        tree, source = _record_file(folder / rule.drill, name)
        facts["drill"] = DrillReport.from_tree(tree, source=source.path), source
    if rule.plan is not None:
        facts["plan"] = _plan(rule.plan, folder)
    return facts


def _plan(rule: PlanRule, folder: Path) -> PlanFacts:
    tree, source = _record_file(folder / rule.record, "the plan's simulation")
    safety = tree.get("safety")
    if not isinstance(safety, dict):
        raise DataError(f"{source.path}: not an offer: it has no 'safety'. Write it with 'assay plan offer'.")
    over_budget = _number(safety, "p_over_budget", source)
    on_time = _number(safety, "p_on_time", source)
    dates = _decision_dates(Offer.from_tree(tree, source=source.path)) if "calendar" in tree else {}
    return PlanFacts(on_time, 1.0 - over_budget, source, dates)


def _decision_dates(offer: Offer) -> dict[str, Any]:
    """Return the dates of the program's decision (80% of simulations, and due), and its median cost by then."""
    days, day_text = offer.safety.decision_day, offer.calendar.day_text
    dates = {name: day_text(24 * day) for name, day in (("low", days.p10), ("middle", days.p50), ("high", days.p90))}
    due = offer.calendar.deadline_text(offer.decide_by)
    return {**dates, "due": due, "device_hours": offer.safety.device_hours.p50}


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


# The forecast at the target scale


def _forecast_on_file(path: Path) -> ForecastFacts:
    tree, source = _record_file(path, "the forecast")
    return ForecastFacts((_number(tree, "low", source), _number(tree, "value", source)), "", (source,))


def _forecast(campaign: OpenCampaign, facts: Facts, rule: ScalingRule, ledger: Ledger) -> ForecastFacts:
    """Forecast the gain at the target scale from recorded campaigns of the same patch at other scales. If no forecast
    is possible, the clause stays undecided and states what is missing; this is no error."""
    assert rule.target is not None, "a rule without a target names a record"
    sources: list[Source] = []
    try:
        gains = np.mean([benchmark.by_seed for benchmark in facts.primary], axis=0).tolist()
        rungs = [GainsAtScale(campaign.config.name, _mean_scale(facts.runs, ledger, rule.scale), gains)]
        for name in rule.campaigns:
            decision = _comparable(name, campaign, facts)
            sources.append(Source(path=f"campaigns/{name}/{decision.path()}", sha256=decision.digest()))
            primary = [effect.by_seed for effect in decision.effects if effect.role == "primary"]
            gains = np.mean(primary, axis=0).tolist()
            rungs.append(GainsAtScale(name, _mean_scale(decision.runs, ledger, rule.scale), gains))
        gain = forecast_gain(rungs, scale_name=rule.scale, target=rule.target).gain
        assert gain.low is not None, "a forecast has a band"
        return ForecastFacts((gain.low, gain.value), "", tuple(sources))
    except DataError as error:
        return ForecastFacts(None, str(error), tuple(sources))


def _comparable(name: str, campaign: OpenCampaign, facts: Facts) -> Decision:
    """Return the newest decision of campaign `name` on the same patch and benchmarks."""
    decision = newest_decisions(campaign.home.campaign_dir(name)).get(facts.candidate)
    if decision is None:
        raise DataError(f"Campaign '{name}' has decided nothing on '{facts.candidate}' yet. Run it to a look.")
    patch = campaign.config.candidate(facts.candidate).change
    if decision.patch != patch:
        raise DataError(
            f"Campaign '{name}' tried '{facts.candidate}' with another patch: {decision.patch}, not {patch}. "
            "Name campaigns of the same candidate."
        )
    primary = [effect.benchmark for effect in decision.effects if effect.role == "primary"]
    if set(primary) != set(campaign.config.rule.primary) or decision.unit != facts.unit:
        raise DataError(
            f"Campaign '{name}' measured {', '.join(primary)} in {decision.unit}; this one measures "
            f"{', '.join(campaign.config.rule.primary)} in {facts.unit}. One law needs one measure."
        )
    return decision


def _mean_scale(runs: Sequence[CampaignRun], ledger: Ledger, scale: str) -> float:
    """Return the mean scale of the baseline's runs, which come first; a patch may change the scale a little."""
    return float(np.mean([scale_of_run(ledger, run.run_id, scale) for run in runs if run.arm == runs[0].arm]))


# The sealed holdout


def _holdout_facts(
    campaign: OpenCampaign, facts: Facts, runs: Sequence[ScoredRun], scoring: Scoring
) -> HoldoutFacts | None:
    """Return the facts of the sealed benchmark at this look; None while it stays closed."""
    benchmark = campaign.config.sealed_benchmark
    if benchmark is None:
        return None
    found = _opening(campaign.folder, facts.candidate)
    if found is None:
        if not (facts.look.is_gate and passes_except_holdout(campaign.config, facts)):
            return None
        if problem := _broken(campaign, benchmark, runs):
            return HoldoutFacts(None, problem, None)
        require_suites_as_declared(campaign.record, campaign.config)
        found = _open(campaign, benchmark, facts, scoring.clock)
    path = campaign.folder / _key(found.candidate)
    source = Source(path=path.relative_to(campaign.home.folder.resolve()).as_posix(), sha256=found.digest())
    if (found.num_seeds, True) != (facts.num_seeds, facts.look.is_gate):
        problem = Statement(code="opened at another look", values={"seeds": found.num_seeds})
        return HoldoutFacts(None, problem, source)
    scored = [_with_sealed(run, benchmark, campaign, scoring) for run in runs]
    return HoldoutFacts(_benchmark_facts(campaign, benchmark, "sealed", scored), None, source)


def openings(home: Home) -> Iterator[HoldoutOpening]:
    """Yield the openings of all campaigns."""
    for path in sorted(home.campaigns.glob(f"*/{OPENINGS}/*.json")):
        yield HoldoutOpening.from_json(path.read_bytes(), source=path)


def _broken(campaign: OpenCampaign, benchmark: SuiteBenchmark, runs: Sequence[ScoredRun]) -> Statement | None:
    """Return why the holdout is no longer valid; None if it is."""
    sha256 = _suite_sha256(campaign, benchmark)
    known = [opening for opening in openings(campaign.home) if opening.suite_sha256 == sha256]
    for other in known:
        if other.campaign != campaign.config.name:
            values = {"campaign": other.campaign, "candidate": other.candidate}
            return Statement(code="opened by another campaign", values=values)
    opened_here = {run_id for opening in known for run_id in opening.runs}
    name = benchmark.benchmark or benchmark.name
    for run in runs:
        run_id = run.record.run_id
        folders = [] if run_id in opened_here else result_folders(Path(run.run.run_dir))
        if any(load_result(folder).benchmark == name for folder in folders):
            return Statement(code="scored before", values={"run_id": run_id})
    return None


def _open(campaign: OpenCampaign, benchmark: SuiteBenchmark, facts: Facts, clock: Clock) -> HoldoutOpening:
    opening = HoldoutOpening(
        campaign=campaign.config.name,
        candidate=facts.candidate,
        benchmark=benchmark.name,
        suite_sha256=_suite_sha256(campaign, benchmark),
        num_seeds=facts.num_seeds,
        runs=tuple(run.run_id for run in facts.runs),
        opened_s=clock.now_s(),
    )
    campaign.store.put_if_absent(_key(facts.candidate), opening.to_json().encode())
    found = _opening(campaign.folder, facts.candidate)
    assert found is not None, "it was written above"
    return found


def _with_sealed(run: ScoredRun, benchmark: SuiteBenchmark, campaign: OpenCampaign, scoring: Scoring) -> ScoredRun:
    folder = scoring.score_sealed(campaign, benchmark, run.run, scoring.ledger, scoring.clock)
    return run._replace(folders={**run.folders, benchmark.name: folder})


def _suite_sha256(campaign: OpenCampaign, benchmark: SuiteBenchmark) -> str:
    assert benchmark.suite is not None, "a sealed benchmark names its suite"
    path = Path(campaign.record.base_dir) / benchmark.suite
    return suite_sha256(path, read_suite(path))


def _opening(folder: Path, candidate: str) -> HoldoutOpening | None:
    path = folder / _key(candidate)
    return HoldoutOpening.from_json(path.read_bytes(), source=path) if path.is_file() else None


def _key(candidate: str) -> str:
    return f"{OPENINGS}/{candidate}.json"
