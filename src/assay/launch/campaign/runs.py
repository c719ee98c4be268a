"""One arm with one seed: trained, or found as it is; scored on every benchmark; with what it cost.

A run's id follows from (campaign, arm, seed). So a campaign that was killed goes on where it was: a finished
run is read, an unfinished one goes on from its last commit, and nothing is trained twice.
"""

from collections.abc import Sequence
from pathlib import Path

from assay.base.clock import Clock
from assay.base.errors import ConfigError, DataError
from assay.data.dataset.dataset import Dataset
from assay.evaluation.decision.candidate import BASELINE, known_good_recipe, patched
from assay.evaluation.decision.config import CampaignConfig, PredictionsBenchmark, SuiteBenchmark
from assay.evaluation.decision.facts import ScoredRun
from assay.evaluation.decision.row_scores import asked_sha256, result_of_predictions
from assay.evaluation.evidence.benchmark_items import RESULT_FILE, load_result, result_folders
from assay.evaluation.evidence.classifier.predictions import (
    PREDICTIONS_FILE,
    evaluation_folder,
    read_predictions,
)
from assay.evaluation.suite.config import read_suite
from assay.launch.campaign.folder import OpenCampaign
from assay.launch.drive import drive, evaluate_run
from assay.launch.evaluation.queue import debit, queue_of, record_results, work
from assay.launch.ranks.supervisor import RestartPolicy, Watcher
from assay.launch.run import VALIDATION, check_world_sizes, checked, existing_run, new_run, recipe_sha256
from assay.records.campaign import CampaignRun
from assay.records.evaluation import ClassifierEvaluation
from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.ledger.ledger import Ledger
from assay.store.metrics.phases import rank_phase_seconds
from assay.store.metrics.segment import read_segment, segment_path
from assay.store.objects import open_store
from assay.training.audit import audit_run
from assay.training.recipe import Recipe, recipe_of

NEVER = 10**12
"""Steps: no commit but the last is a multiple of it."""


def check_arms(config: CampaignConfig, *, beside: Path) -> int:
    """Check the recipe of every arm on its dataset before anything starts; returns the number of runs."""
    recipe, _ = known_good_recipe(beside / config.recipe)
    baseline = checked(patched(recipe, {}, arm=BASELINE, seed=config.first_seed))
    check_world_sizes(baseline[0].loader.lanes, [config.workers])
    for each in config.candidates:
        found = checked(patched(recipe, each.patch, arm=each.name, seed=config.first_seed))
        check_world_sizes(found[0].loader.lanes, [config.workers])
        _check_candidate(each.name, config, baseline, found)
    for benchmark in config.benchmarks:
        if isinstance(benchmark, SuiteBenchmark) and benchmark.suite is not None:
            _check_suite(benchmark, beside / benchmark.suite)
    return (1 + len(config.candidates)) * config.seeds


def _check_candidate(
    name: str, config: CampaignConfig, baseline: tuple[Recipe, Dataset], found: tuple[Recipe, Dataset]
) -> None:
    """It differs from the baseline, and can be compared with it where the campaign wants to."""
    if found[0] == baseline[0]:
        raise ConfigError(
            f"candidate '{name}': its patch changes nothing, the baseline's recipe has these values already."
        )
    rows = [(each[0].data.split, each[1].fingerprint) for each in (baseline, found)]
    scored = [each.name for each in config.benchmarks if isinstance(each, PredictionsBenchmark)]
    if scored and rows[0] != rows[1]:
        raise ConfigError(
            f"candidate '{name}' has another dataset or split than the baseline, so their validation rows, "
            f"which benchmark '{scored[0]}' scores, are not the same. Compare the two on a suite of their own "
            "(type: suite)."
        )


def _check_suite(benchmark: SuiteBenchmark, path: Path) -> None:
    """The suite can be read, and asks what the campaign wants to know."""
    name, suite = benchmark.benchmark or benchmark.name, read_suite(path)
    known = [each.name for each in suite.benchmarks]
    if name not in known:
        raise ConfigError(
            f"{path}: has no benchmark '{name}', which a campaign asks for; it has {', '.join(known)}."
        )


def absent_files(config: CampaignConfig, *, beside: Path) -> list[str]:
    """Files that the rule's clauses ask for and that are still to be made, as `key: path`."""
    rule = config.rule
    asked = {
        "rule.coverage": rule.coverage,
        "rule.drill": None if rule.drill == "audit" else rule.drill,
        "rule.scaling.record": rule.scaling.record if rule.scaling else None,
        "rule.plan.record": rule.plan.record if rule.plan else None,
    }
    return [f"{key}: {beside / path}" for key, path in asked.items() if path and not (beside / path).is_file()]


def run_id_of(campaign: str, arm: str, seed: int) -> str:
    """The id of one arm's run with one seed."""
    return f"{campaign}-{arm}-s{seed}"


def arm_run(campaign: OpenCampaign, arm: str, seed: int) -> Run:
    """The run's record, made if there is none. `ConfigError` where its recipe is not the campaign's."""
    patch = {} if arm == BASELINE else campaign.config.candidate(arm).patch
    recipe = patched(campaign.recipe, patch, arm=arm, seed=seed)
    run_id = run_id_of(campaign.config.name, arm, seed)
    if not campaign.home.has_run(run_id):
        return new_run(campaign.home, recipe, world_size=campaign.config.workers, run_id=run_id)
    run = existing_run(campaign.home, run_id)
    wanted, dataset = checked(recipe)
    if recipe_sha256(wanted, dataset.fingerprint) != recipe_sha256(recipe_of(run), run.dataset_fingerprint):
        raise ConfigError(
            f"run '{run_id}' exists with another recipe than arm '{arm}' of campaign "
            f"'{campaign.config.name}' has. Give the campaign another name, or remove the run's folder."
        )
    return run


def train_arm(
    campaign: OpenCampaign,
    run: Run,
    ledger: Ledger,
    *,
    watchers: Sequence[Watcher],
    clock: Clock,
) -> ClassifierEvaluation | None:
    """The run's last evaluation: trained, resumed or found. None where the run was asked to stop."""
    log = CommitLog(open_store(run.store_url))
    if log.finished() is None:
        settle(run, ledger)
        return drive(
            campaign.home,
            run,
            ledger,
            world_size=campaign.config.workers,
            policy=RestartPolicy(),
            watchers=watchers,
            clock=clock,
        ).evaluation
    known = ledger.evaluations(run.run_id)
    if known and ledger.audit(run.run_id) is not None:
        return known[-1]
    # Trained, and killed before its evaluation or its audit was written down.
    settle(run, ledger)
    evaluation = evaluate_run(run, log)
    ledger.record_evaluation(evaluation)
    ledger.record_audit(audit_run(run, log))
    return evaluation


def scored_run(
    campaign: OpenCampaign, run: Run, ledger: Ledger, *, arm: str, seed: int, clock: Clock
) -> ScoredRun:
    """A finished run with a result on every benchmark; those that its predictions give are made here."""
    evaluation = ledger.evaluations(run.run_id)[-1]
    folders = {
        benchmark.name: _predictions_folder(benchmark, run, evaluation, arm=arm, seed=seed, clock=clock)
        if isinstance(benchmark, PredictionsBenchmark)
        else suite_folder(benchmark, run, evaluation, ledger, beside=Path(campaign.record.beside), clock=clock)
        for benchmark in campaign.config.open_benchmarks
    }
    audit = ledger.audit(run.run_id)
    record = CampaignRun(
        arm=arm,
        seed=seed,
        run_id=run.run_id,
        recipe_sha256=run.recipe_sha256,
        weights_digest=evaluation.weights_digest,
        audit_verdict=audit.verdict if audit else "not audited",
        num_attempts=max(1, len(ledger.attempts(run.run_id))),
        device_s=device_seconds_of(run.run_id, ledger),
    )
    return ScoredRun(record, folders)


def finished_runs(campaign: OpenCampaign, ledger: Ledger, arm: str, *, clock: Clock) -> list[ScoredRun]:
    """The arm's runs that are finished and evaluated, seed by seed up to the first that is not; trains
    nothing."""
    found: list[ScoredRun] = []
    for seed in campaign.config.seed_numbers:
        run_id = run_id_of(campaign.config.name, arm, seed)
        if not campaign.home.has_run(run_id) or not ledger.evaluations(run_id):
            break
        run = existing_run(campaign.home, run_id)
        found.append(scored_run(campaign, run, ledger, arm=arm, seed=seed, clock=clock))
    return found


def device_seconds_of(run_id: str, ledger: Ledger) -> float:
    """Device time of a run's attempts that are in the ledger, over all ranks."""
    return sum(each.held_s for each in ledger.phase_seconds(run_id))


def settle(run: Run, ledger: Ledger) -> None:
    """Debit attempts whose supervisor died before it could: until the last sign of life of each rank.

    Only for a run that nobody drives. An attempt that left no sign cost nothing that can be known.
    """
    settled = {each.attempt for each in ledger.phase_seconds(run.run_id)}
    for attempt in ledger.attempts(run.run_id):
        if attempt.attempt in settled:
            continue
        for rank in range(attempt.world_size):
            path = segment_path(Path(run.run_dir), attempt.attempt, rank)
            segment = read_segment(path) if path.exists() else None
            if segment is None or segment.header is None or not len(segment.phase_changes.at_s):
                continue
            seen_s = float(segment.header.wall_of(segment.phase_changes.at_s)[-1])
            commits = CommitLog(open_store(run.store_url)).commits()
            ledger.record_phase_seconds(
                rank_phase_seconds(
                    run,
                    attempt,
                    rank,
                    held_to_s=max(seen_s, attempt.started_s),
                    committed_step=max([attempt.start_step, *(each.step for each in commits)]),
                )
            )


def _predictions_folder(
    benchmark: PredictionsBenchmark,
    run: Run,
    evaluation: ClassifierEvaluation,
    *,
    arm: str,
    seed: int,
    clock: Clock,
) -> Path:
    folder = Path(run.run_dir) / "benchmarks" / benchmark.name
    wanted = (evaluation.weights_digest, asked_sha256(benchmark, evaluation))
    if (folder / RESULT_FILE).is_file():
        known = load_result(folder)
        if (known.weights_digest, known.benchmark_sha256) == wanted:
            return folder
    predictions = evaluation_folder(Path(run.run_dir), step=evaluation.step, split=VALIDATION)
    table = read_predictions(predictions / PREDICTIONS_FILE, sha256=evaluation.predictions_sha256)
    result_of_predictions(
        benchmark, table, evaluation, arm=arm, seed=seed, evaluated_s=clock.now_s(), folder=folder
    )
    return folder


def suite_folder(
    benchmark: SuiteBenchmark,
    run: Run,
    evaluation: ClassifierEvaluation,
    ledger: Ledger,
    *,
    beside: Path,
    clock: Clock,
) -> Path:
    """Where the result of the run's last weights is; scored now where it is not there and a suite is named."""
    name = benchmark.benchmark or benchmark.name
    folder = _folder_of_result(name, run, evaluation.weights_digest)
    if folder is None and benchmark.suite is not None:
        _evaluate_last(run, beside / benchmark.suite, ledger, clock)
        folder = _folder_of_result(name, run, evaluation.weights_digest)
    if folder is None:
        raise DataError(
            f"run '{run.run_id}' has no result of benchmark '{name}' for its last weights. Name its suite in "
            "the campaign's file, or evaluate it with 'assay eval'; then run the campaign again: it goes on "
            "from here."
        )
    return folder


def _folder_of_result(benchmark: str, run: Run, weights_digest: str) -> Path | None:
    """The newest: a benchmark that was changed and evaluated again leaves its older results where they are."""
    found = [(load_result(folder), folder) for folder in result_folders(Path(run.run_dir))]
    same = [
        (result.evaluated_s, folder)
        for result, folder in found
        if result.benchmark == benchmark and result.weights_digest == weights_digest
    ]
    return max(same)[1] if same else None


def _evaluate_last(run: Run, suite: Path, ledger: Ledger, clock: Clock) -> None:
    """Score the last commit; what somebody else is at, or did before, is not done again."""
    queue = queue_of(run, suite=str(suite.resolve()))
    only_the_last = queue.config.model_copy(update={"every_steps": NEVER})
    work(queue._replace(config=only_the_last), ledger, clock=clock, follow=True)
    record_results(queue, ledger)
    debit(queue, ledger)
