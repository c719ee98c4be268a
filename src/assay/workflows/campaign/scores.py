"""Scores of a finished run on every benchmark; missing ones are computed here.

A result counts if it is of the run's last weights and of the benchmark as the campaign defines it.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from assay.base.clock import Clock
from assay.base.errors import AssayError, DataError
from assay.decision.config import PredictionsBenchmark, SuiteBenchmark
from assay.decision.facts import BenchmarkFacts, BenchmarkScores, benchmark_facts
from assay.decision.row_scores import definition_sha256, result_of_predictions, scored_predictions
from assay.records.benchmark import BenchmarkResult
from assay.records.campaign import CampaignRun
from assay.records.decision import Source
from assay.records.evaluation import AnyEvaluation
from assay.records.run import Run
from assay.reporting.views.run import model_numbers
from assay.statistics.benchmark_items import (
    RESULT_FILE,
    load_result,
    read_score_matrix,
    result_folders,
    score_matrix,
)
from assay.statistics.predictions import predictions_of
from assay.store.home import Home
from assay.store.ledger.ledger import Ledger
from assay.workflows.bookkeeping import rebuild_run, writer_of
from assay.workflows.campaign.arm_plan import run_id_of
from assay.workflows.campaign.folder import OpenCampaign
from assay.workflows.campaign.train import ArmRun, device_seconds_of
from assay.workflows.evaluation.queue import queue_of, record_results, work
from assay.workflows.run import load_run

NEVER = 10**12
"""A step interval larger than any run, so only the last commit is due."""


class ScoredRun(NamedTuple):
    """A finished run and its results."""

    record: CampaignRun
    folders: dict[str, Path]
    """Folder of the result by benchmark."""


def score_run(campaign: OpenCampaign, arm_run: ArmRun, ledger: Ledger, *, clock: Clock) -> ScoredRun:
    """Return a finished run with a result on every benchmark; those from predictions are computed here."""
    run = arm_run.run
    evaluation = ledger.evaluations(run.run_id)[-1]
    folders = {
        benchmark.name: _predictions_folder(benchmark, arm_run, evaluation, ledger, clock)
        if isinstance(benchmark, PredictionsBenchmark)
        else suite_folder(campaign, benchmark, run, ledger, clock)
        for benchmark in campaign.config.open_benchmarks
    }
    audit = ledger.audit(run.run_id)
    warned = model_numbers(ledger, run.run_id).warnings()
    record = CampaignRun(
        arm=arm_run.arm,
        seed=arm_run.seed,
        run_id=run.run_id,
        recipe_sha256=run.recipe_sha256,
        weights_digest=evaluation.weights_digest,
        audit_verdict=audit.verdict if audit else "not audited",
        num_attempts=max(1, len(ledger.attempts(run.run_id))),
        device_s=device_seconds_of(run.run_id, ledger),
        warnings=tuple(arm_run.text for arm_run in warned),
        warning_rules=tuple(arm_run.rule for arm_run in warned),
    )
    return ScoredRun(record, folders)


def score_finished_runs(campaign: OpenCampaign, ledger: Ledger, arm: str, *, clock: Clock) -> list[ScoredRun]:
    """Return the arm's finished and evaluated runs, seed by seed up to the first that is not; trains nothing."""
    found: list[ScoredRun] = []
    for seed in campaign.config.seed_numbers:
        run_id = run_id_of(campaign.config.name, arm, seed)
        if not campaign.home.has_run(run_id):
            break
        arm_run = ArmRun(arm, seed, load_run(campaign.home, run_id))
        if not ledger.evaluations(run_id):  # the ledger may have missed facts of the folder
            rebuild_run(ledger, arm_run.run)
        if not ledger.evaluations(run_id):
            break
        found.append(score_run(campaign, arm_run, ledger, clock=clock))
    return found


def benchmark_scores(benchmark: str, runs: Sequence[ScoredRun], home: Path) -> BenchmarkScores:
    """Return the scores of the runs, the baseline first, by seed. Raises the errors of `read_score_matrix`."""
    folders = [run.folders[benchmark] for run in runs]
    results = tuple(load_result(folder) for folder in folders)
    sources = tuple(
        Source(path=_path_in(home, folder / RESULT_FILE), sha256=result.digest())
        for folder, result in zip(folders, results, strict=True)
    )
    return BenchmarkScores(read_score_matrix(folders), results, sources)


def secondary_scores(campaign: OpenCampaign, runs: Sequence[ScoredRun], ledger: Ledger) -> list[BenchmarkFacts]:
    """Return further metrics on the rows of the primary benchmarks, if they can be computed; an AUC needs both
    classes."""
    found: list[BenchmarkFacts] = []
    for benchmark in campaign.config.secondary:
        with suppress(AssayError):
            scored = [_scored_again(campaign, benchmark, run.record, ledger) for run in runs]
            scores = BenchmarkScores(score_matrix(scored), tuple(result for result, _ in scored), ())
            found.append(benchmark_facts(benchmark, "other", scores))
    return found


def _scored_again(
    campaign: OpenCampaign, benchmark: PredictionsBenchmark, record: CampaignRun, ledger: Ledger
) -> tuple[BenchmarkResult, Any]:
    evaluation = ledger.evaluations(record.run_id)[-1]
    table = predictions_of(campaign.home.run_dir(record.run_id), evaluation)
    return scored_predictions(benchmark, table, evaluation, arm=record.arm, seed=record.seed, evaluated_s=0.0)


def _predictions_folder(
    benchmark: PredictionsBenchmark, arm_run: ArmRun, evaluation: AnyEvaluation, ledger: Ledger, clock: Clock
) -> Path:
    folder = Path(arm_run.run.run_dir) / "benchmarks" / benchmark.name
    definition = definition_sha256(benchmark, dataset=evaluation.dataset_fingerprint, split=evaluation.split)
    expected = (evaluation.weights_digest, definition)
    if (folder / RESULT_FILE).is_file():
        known = load_result(folder)
        if (known.weights_digest, known.benchmark_sha256) == expected:
            ledger.record_benchmark_result(known)
            return folder
    table = predictions_of(Path(arm_run.run.run_dir), evaluation)
    result = result_of_predictions(
        benchmark, table, evaluation, arm=arm_run.arm, seed=arm_run.seed, evaluated_s=clock.now_s(), folder=folder
    )
    ledger.record_benchmark_result(result)
    return folder


def suite_folder(campaign: OpenCampaign, benchmark: SuiteBenchmark, run: Run, ledger: Ledger, clock: Clock) -> Path:
    """Return the folder of the result for the run's last weights; evaluate now if it is missing and a suite is
    named."""
    name = benchmark.benchmark or benchmark.name
    weights_digest = ledger.evaluations(run.run_id)[-1].weights_digest
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
    with writer_of(home, run) as writer:
        work(queue._replace(config=only_the_last), writer, clock=clock, follow=True)
        record_results(queue, writer)


def _path_in(home: Path, path: Path) -> str:
    return path.relative_to(home).as_posix() if path.is_relative_to(home) else str(path)
